package logs

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A console is one of the agent's own streams, or a filtered file: something
// that several workers' output is copied to, whole lines at a time.
type console struct {
	file     *os.File
	terminal bool

	mu   sync.Mutex // held over the writes of one piece of output
	gone error      // the first write error; nothing is written afterwards

	lost    atomic.Int64 // bytes that could not be written
	written atomic.Int64
}

func newConsole(file *os.File) *console {
	return &console{file: file, terminal: isTerminal(file)}
}

// write writes p whole, or counts it as lost. The caller holds mu.
func (c *console) write(p []byte) {
	if c.gone != nil {
		c.lost.Add(int64(len(p)))
		return
	}
	n, err := c.file.Write(p)
	c.written.Add(int64(n))
	if err != nil {
		c.gone = err
		c.lost.Add(int64(len(p) - n))
	}
}

func (c *console) writeAll(p []byte) {
	if len(p) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(p)
}

// failure returns the first write error.
func (c *console) failure() error {
	if !c.mu.TryLock() {
		return nil // a write is stuck
	}
	defer c.mu.Unlock()
	return c.gone
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), ioctlGetTermios)
	return err == nil
}
