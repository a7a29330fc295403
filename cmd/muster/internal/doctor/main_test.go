package doctor_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/cli"
	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/rendezvous"
)

// guests are what the test binary is when it is started again, by the second word of
// its command line.
var guests = map[string]func(args []string) error{
	"hold":    hold,
	"shifted": shifted,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "muster" {
		os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 2 && os.Args[1] == "guest" {
		if err := guests[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // most of them wait for the network
	os.Exit(m.Run())
}

// hold listens at a port and answers as a web server does, until stdin ends.
func hold(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = bufio.NewReader(c).Peek(1)
				fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
			}()
		}
	}()
	fmt.Println("listening")
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
	return nil
}

// shifted is doctor on a host whose clock is ahead: args are the endpoint's host and
// how much.
func shifted(args []string) error {
	ahead, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	system := doctor.Real()
	system.Now = func() time.Time { return time.Now().Add(ahead) }
	report := doctor.Run(context.Background(), doctor.Config{
		Backend: "c10d", Host: args[0], Port: 29400, MinNodes: 2, MaxNodes: 2, RunID: "none",
		Settings: rendezvous.Settings{}.WithDefaults(), Workers: doctor.Workers{Count: 1}, LogDir: os.DevNull, Wait: patience,
		System: system,
	})
	return report.WriteJSON(os.Stdout)
}

// patience bounds every wait for what should happen.
const patience = time.Minute
