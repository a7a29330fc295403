package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/muster-run/muster/process"
)

type request struct{ Greeting, Name string }

type reply struct{ Text string }

// register names the functions that workers run. main, or TestMain as here, calls it
// before process.FuncMain.
func register() {
	process.Register("greet", process.JSON(func(_ context.Context, r request) (reply, error) {
		if r.Name == "" {
			return reply{}, errors.New("nobody to greet")
		}
		return reply{r.Greeting + ", " + r.Name}, nil
	}))
}

// A worker runs a function of this program, which main has registered before it called
// FuncMain:
//
//	process.Register("greet", process.JSON(func(ctx context.Context, r request) (reply, error) {
//		return reply{r.Greeting + ", " + r.Name}, nil
//	}))
//	process.FuncMain()
func ExampleRegister() {
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	input, err := json.Marshal(request{Greeting: "Hello", Name: "worker"})
	if err != nil {
		panic(err)
	}
	g, err := s.Start(process.Config{
		Func:   "greet",
		Inputs: map[int][]byte{0: input},
		Envs:   map[int]map[string]string{0: nil},
	})
	if err != nil {
		panic(err)
	}
	result, err := g.Wait(context.Background())
	if err != nil {
		panic(err)
	}
	var value reply
	err = result.Exits[0].Decode(&value)
	fmt.Println(value.Text, err)
	// Output: Hello, worker <nil>
}
