package tcpstore_test

import (
	"context"
	"fmt"

	"github.com/muster-run/muster/store/tcpstore"
)

// A server that PyTorch's TCPStore clients can use too, and a client of ours.
func Example() {
	ctx := context.Background()
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: server.Addr().String()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	if err := client.Set(ctx, "master", []byte("10.0.0.1:29500")); err != nil {
		fmt.Println(err)
	}
	text, err := client.Get(ctx, "master")
	joined, _ := client.Add(ctx, "joined", 1)
	fmt.Println(string(text), err, joined)
	// Output: 10.0.0.1:29500 <nil> 1
}

func ExampleDial() {
	ctx := context.Background()
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: server.Addr().String()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	go client.Set(ctx, "master", []byte("10.0.0.1"))
	value, err := server.Store().Get(ctx, "master")
	fmt.Printf("%s %v\n", value, err)
	// Output: 10.0.0.1 <nil>
}
