package evidence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/internal/host/kmsg"
	"github.com/muster-run/muster/process"
)

const (
	// faultsTimeout bounds how long nvidia-smi is waited for after a failure.
	faultsTimeout = 2 * time.Second
	// detailsTimeout bounds nvidia-smi -q, for which only the agent's end waits.
	detailsTimeout = 5 * time.Second
	// detailsFile, in an attempt's directory, is what that says.
	detailsFile = "nvidia-smi.txt"
)

// MayBeHardware reports whether a GPU may be to blame for a worker's end: a crash, a missed deadline,
// or an error of CUDA. SIGKILL and the like come from somebody.
func MayBeHardware(exit process.Exit, missed string, stderr []byte) bool {
	switch {
	case exit.OOMKilled != "" || missed == "" && exit.StoppedBy != 0 || exit.PID == 0:
		return false
	case missed != "":
		return true
	}
	switch syscall.Signal(-exit.Code) {
	case syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP:
		return true
	}
	said := strings.ToLower(string(stderr))
	return slices.ContainsFunc([]string{"cuda error", "cuda failure",
		"cudnn_status", "cublas_status", "uncorrectable", "cudaerror", "device-side assert", "gpu is lost"},
		func(part string) bool { return strings.Contains(said, part) })
}

// A GPUFaults is what is wrong with this host's GPUs.
type GPUFaults struct {
	xids    []devices.Xid
	said    []string // by nvidia-smi
	index   map[string]string
	workers []int // the pids of this host's
}

// FindXids looks for them in the kernel's log, which read reads, since some workers began, with their pids. It waits
// for nothing.
func FindXids(read func(each func(record string)), began time.Time, pids []int) *GPUFaults {
	return &GPUFaults{xids: xidsOf(read, kmsg.Now()-time.Since(began).Microseconds()), workers: pids}
}

// AskDriver adds what nvidia-smi says. It takes no longer than faultsTimeout.
func (f *GPUFaults) AskDriver() {
	ctx, cancel := context.WithTimeout(context.Background(), faultsTimeout)
	defer cancel()
	type answer struct {
		said  []string
		index map[string]string
	}
	a := within(ctx, func() answer {
		said, index := devices.Faults(ctx)
		return answer{said, index}
	})
	f.said, f.index = a.said, a.index
}

// within returns what f does, or nothing if that comes later than the end of ctx: f asks the driver, which may hold
// its process in the kernel for as long as it likes.
func within[T any](ctx context.Context, f func() T) (found T) {
	got := make(chan T, 1)
	go func() { got <- f() }()
	select {
	case found = <-got:
	case <-ctx.Done():
	}
	return found
}

// KeepDetails writes what nvidia-smi -q says of this host's GPUs into a directory, beside an attempt's report.
func KeepDetails(dir string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), detailsTimeout)
	defer cancel()
	text := within(ctx, func() []byte { return devices.Details(ctx) })
	if len(text) == 0 {
		return
	}
	file, err := safeopen.Create(filepath.Join(dir, detailsFile))
	if err == nil {
		_, err = file.Write(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil { // a warning tells of the report's, too
		log.Debug("cannot keep what nvidia-smi says of this host's GPUs", "error", err)
	}
}

// xidsOf finds the Xids among the kernel's records since some time, each of a GPU once.
func xidsOf(read func(each func(record string)), since int64) (xids []devices.Xid) {
	const most = 8
	read(func(record string) {
		text, _ := kmsg.After(record, since)
		x, ok := devices.ParseXid(text)
		if ok && len(xids) < most && !slices.ContainsFunc(xids,
			func(y devices.Xid) bool { return x.PCI == y.PCI && x.Code == y.Code && x.PID == y.PID }) {
			xids = append(xids, x)
		}
	})
	return xids
}

// Of says what concerns a worker: what the kernel does not blame on one of its others.
func (f *GPUFaults) Of(pid int) string {
	var said []string
	for _, x := range f.xids {
		another := x.PID != pid && slices.Contains(f.workers, x.PID)
		if text := x.String(f.index); !another && !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	return strings.Join(append(said, f.said...), "; ")
}

// coreFile says where the kernel has put a core dump, by its core_pattern; "" where that cannot be
// told. cwd is the directory of the process.
// Source: core(5).
func coreFile(pattern, usesPID, cwd, host string, pid int, sig syscall.Signal) string {
	pattern = strings.TrimSuffix(pattern, "\n")
	if program, piped := strings.CutPrefix(pattern, "|"); piped {
		words := strings.Fields(program)
		switch {
		case len(words) == 0:
			return ""
		case filepath.Base(words[0]) == "systemd-coredump":
			return fmt.Sprintf("systemd-coredump has it: coredumpctl info %d", pid)
		case filepath.Base(words[0]) == "apport":
			return "apport has it: see /var/crash and /var/lib/apport/coredump"
		}
		return "given to " + words[0]
	}
	known := map[byte]string{
		'%': "%", 'p': fmt.Sprint(pid), 's': fmt.Sprint(int(sig)), 'h': host, 'u': fmt.Sprint(os.Getuid()),
		'g': fmt.Sprint(os.Getgid()),
	}
	var path strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			path.WriteByte(pattern[i])
			continue
		}
		if i++; i == len(pattern) {
			break
		}
		text, ok := known[pattern[i]]
		if !ok {
			text = "*" // a time, a name: what only the kernel knows
		}
		path.WriteString(text)
	}
	if strings.TrimSpace(usesPID) == "1" && !strings.Contains(pattern, "%p") {
		fmt.Fprintf(&path, ".%d", pid)
	}
	if path.Len() == 0 {
		return ""
	}
	if file := path.String(); filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(cwd, path.String())
}

// CoreOf says where the core dump of a worker is, on a host with a name.
func CoreOf(exit process.Exit, host string) string {
	if !exit.CoreDumped {
		return ""
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		return ""
	}
	usesPID, _ := os.ReadFile("/proc/sys/kernel/core_uses_pid")
	cwd, _ := os.Getwd()
	return coreFile(string(pattern), string(usesPID), cwd, host, exit.PID, syscall.Signal(max(0, -exit.Code)))
}
