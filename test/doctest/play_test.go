//go:build linux

package doctest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/netlab"
)

// patience bounds every wait. Nothing is expected to take this long.
const patience = 5 * time.Minute

// A play follows a page: its commands, one after the other, on hosts of their own
// whose directory has a train.py. Names, ports and processes meet no others.
type play struct {
	*testing.T
	page *Page
	lab  *netlab.Lab // nil for a page that brings its own
	dir  string      // where the commands run, on all hosts
	temp string      // the directory of their temporary files
	env  []string    // of the commands
	done map[string]bool
}

// newPlay makes hosts on which to follow a page.
func newPlay(t *testing.T, name string, hosts int) *play {
	t.Helper()
	page, err := Read(root, name)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{T: t, page: page, done: map[string]bool{}}
	if hosts > 0 {
		p.lab = netlab.New(t, hosts)
	}
	p.dir = filepath.Join(t.TempDir(), "work")
	p.temp = filepath.Join(t.TempDir(), "tmp")
	source, err := filepath.Abs(root)
	p.must(err)
	p.must(os.CopyFS(p.dir, os.DirFS("testdata/all")))
	if own := strings.TrimSuffix(filepath.Base(name), ".md"); exists(filepath.Join("testdata", own)) {
		p.must(os.Rename(filepath.Join(p.dir, "train.py"), filepath.Join(p.dir, "plain.py")))
		p.must(os.CopyFS(p.dir, os.DirFS(filepath.Join("testdata", own))))
	}
	p.must(os.Mkdir(p.temp, 0o777))
	p.must(os.Symlink(bin, filepath.Join(p.dir, "bin")))
	p.must(os.Symlink(filepath.Join(source, "examples"), filepath.Join(p.dir, "examples")))
	p.env = []string{
		"PATH=" + p.dir + "/site:" + bin + ":" + python + ":" + os.Getenv("PATH"), "HOME=" + p.dir, "TMPDIR=" + p.temp, "TZ=UTC",
		"PYTHONPATH=" + filepath.Join(source, "python"), "PYTHONDONTWRITEBYTECODE=1", "MUSTER_DEVICES=0", "COLUMNS=200",
		"MUSTER_AUTOPSY_TIMEOUT=60", // py-spy may take longer than 5 s on a busy machine
	}
	return p
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (p *play) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// end asks for the help that the page names, and checks that nothing else is left.
func (p *play) end() {
	p.Helper()
	for _, c := range p.page.Commands() {
		switch {
		case p.done[c.Line] || elsewhere(p.page, c.Line):
		case strings.HasPrefix(c.Line, "muster help ") || strings.HasSuffix(c.Line, " --help"):
			p.run(c.Line).exits(0).says(1, "(?i)^usage: ")
		default:
			p.Errorf("%s:%d: %s: is not run by a test", p.page.Name, c.At, c.Line)
		}
	}
}

// command finds a command of the page.
func (p *play) command(line string) Command {
	p.Helper()
	all := p.page.Commands()
	i := slices.IndexFunc(all, func(c Command) bool { return c.Line == line })
	if i < 0 {
		p.Fatalf("%s has no command %q", p.page.Name, line)
	}
	p.done[line] = true
	return all[i]
}

// form finds code within the page's text in which there is something to fill in, and
// fills it in.
func (p *play) form(text, what, with string) string {
	p.Helper()
	if !slices.Contains(p.page.Spans, text) {
		p.Fatalf("%s does not have %q", p.page.Name, text)
	}
	return strings.ReplaceAll(text, what, with)
}

// A run is a command that was started.
type run struct {
	p     *play
	host  string
	shown string // by the page, as its output
	cmd   *exec.Cmd
	out   console
	ended chan struct{}
}

// run runs a command of the page on host0, to its end.
func (p *play) run(line string, env ...string) *run {
	p.Helper()
	return p.start(0, line, env...).wait()
}

// start starts a command of the page on a host.
func (p *play) start(host int, line string, env ...string) *run {
	p.Helper()
	c := p.command(line)
	r := p.do(host, strings.TrimPrefix(c.Line, "+ "), env...)
	r.shown = c.Output
	return r
}

// outside is the number of no host: the machine itself.
const outside = -1

// do starts what is not on the page, or not as it is run: what precedes a page, or a
// command that is put together from its parts.
func (p *play) do(host int, line string, env ...string) *run {
	p.Helper()
	r := &run{p: p, host: "this machine", ended: make(chan struct{})}
	r.out.wrote = make(chan struct{}, 1)
	// So that a signal reaches the command itself.
	line = "exec " + strings.TrimPrefix(line, "exec ")
	r.cmd = exec.CommandContext(p.Context(), "sh", "-c", line)
	cmd := r.cmd
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, slices.Concat(p.env, env), &r.out, &r.out
	cmd.WaitDelay = patience
	if host == outside {
		p.must(cmd.Start())
	} else {
		r.host = p.lab.Host(host).Name
		p.must(p.lab.Host(host).Start(cmd))
	}
	go func() {
		_ = cmd.Wait() // the state says how it ended
		close(r.ended)
	}()
	p.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// wait waits for the end of the command.
func (r *run) wait() *run {
	r.p.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.p.Fatalf("%s on %s has not ended:\n%s", r.cmd.Args[2], r.host, r.out.String())
	}
	return r
}

// exits checks how the command has ended.
func (r *run) exits(status int) *run {
	r.p.Helper()
	if got := r.wait().cmd.ProcessState.ExitCode(); got != status {
		r.p.Errorf("%s on %s: %v, want exit status %d:\n%s", r.cmd.Args[2], r.host, r.cmd.ProcessState, status, r.out.String())
	}
	return r
}

// interrupt is a Ctrl-C.
func (r *run) interrupt() *run {
	r.p.Helper()
	if err := r.cmd.Process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.p.Fatal(err)
	}
	return r.wait()
}

// says waits until the command has printed lines, n of them, that match.
func (r *run) says(n int, line string) *run {
	r.p.Helper()
	re := regexp.MustCompile("(?m)" + line)
	limit := time.After(patience)
	for over := false; len(re.FindAllString(r.out.String(), -1)) < n; {
		if over {
			r.p.Fatalf("%s on %s did not say %q %d times:\n%s", r.cmd.Args[2], r.host, line, n, r.out.String())
		}
		select {
		case <-r.out.wrote:
		case <-r.ended:
			over = true
		case <-limit:
			over = true
		}
	}
	return r
}

// prints checks the output against what the page shows; as for loose see Compare.
func (r *run) prints(loose bool) *run {
	r.p.Helper()
	if r.shown == "" {
		r.p.Errorf("%s does not show what %s prints", r.p.page.Name, r.cmd.Args[2])
	}
	if err := Compare(r.shown, r.wait().out.String(), loose); err != nil {
		r.p.Errorf("%s: %s: %v:\n%s", r.p.page.Name, r.cmd.Args[2], err, r.out.String())
	}
	return r
}

// only forgets what else the command has printed.
func (r *run) only(without *regexp.Regexp) *run {
	r.wait()
	text := without.ReplaceAllString(r.out.String(), "")
	r.out.text.Reset()
	r.out.text.WriteString(text)
	return r
}

// A console keeps what is written to it.
type console struct {
	mu    sync.Mutex // guards text
	text  bytes.Buffer
	wrote chan struct{}
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Write(p)
	select {
	case c.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// torch is an environment variable that lets Python find a small torch.
func (p *play) torch() string {
	p.Helper()
	dir, err := filepath.Abs("testdata/python")
	p.must(err)
	return "PYTHONPATH=" + dir
}
