// Command store counts members in a TCPStore, as a server of PyTorch's clients or as a client of PyTorch's
// server:
//
//	store serve 127.0.0.1:29600 3    prints three members, and serves until stdin ends
//	store join 127.0.0.1:29600 NAME
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "serve":
		n, err := strconv.Atoi(args[2])
		check(err)
		server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: args[1]})
		check(err)
		defer server.Close()
		fmt.Println("serving", server.Addr())
		members := store.Prefix("members", server.Store()) // keys as clients have them
		for i := range n {
			name, err := members.Get(ctx, strconv.Itoa(i+1)) // waits for it
			check(err)
			fmt.Printf("member %d: %s\n", i+1, name)
		}
		_, err = io.Copy(io.Discard, os.Stdin) // a server that ends now may not have answered the last one
		check(err)
	case len(args) == 3 && args[0] == "join":
		client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: args[1]})
		check(err)
		defer client.Close()
		n, err := client.Add(ctx, "count", 1)
		check(err)
		check(client.Set(ctx, fmt.Sprint("members/", n), []byte(args[2])))
		fmt.Println("member", n)
	default:
		log.Fatal("usage: store serve HOST:PORT MEMBERS | store join HOST:PORT NAME")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
