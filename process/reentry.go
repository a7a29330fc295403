package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// guardName is what ps shows, and what makes GuardMain recognise the guard.
const guardName = "muster-guard"

// The guard and the workers that are functions are this program started again. A
// main that does not look what it was started as would do all its work once more,
// start workers of its own, and so on without an end. So nothing is started that
// way unless main has called what looks; that is a fact about the whole program.
var calledGuardMain, calledFuncMain atomic.Bool

// errNoFuncMain is why a group of functions is not started.
var errNoFuncMain = errors.New("main has not called process.FuncMain, so each worker would run main from its " +
	"beginning; call it in main, after Register")

// errNoGuardMain is why there is no guard.
var errNoGuardMain = errors.New("main has not called process.GuardMain; call it first in main")

func startedAsGuard() bool {
	return os.Args[0] == guardName && os.Getenv(guardName) == "1"
}

// checkReentry refuses to continue where this process was started as a guard or a
// function and main has passed the call that it was meant for.
func checkReentry() error {
	switch _, name, _ := strings.Cut(os.Getenv(funcVar), ":"); {
	case startedAsGuard():
		return fmt.Errorf("process: this process was started as a guard, and must not start workers: %w", errNoGuardMain)
	case name != "":
		return fmt.Errorf("process: this process was started to run the function %q, and must not start workers: %w", name,
			errNoFuncMain)
	}
	return nil
}
