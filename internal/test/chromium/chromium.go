// Package chromium drives a headless Chromium for tests of pages.
package chromium

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// A Browser is a headless Chromium that a test drives over a pipe.
// Source: https://chromedevtools.github.io/devtools-protocol/.
type Browser struct {
	T   *testing.T // who fails where the browser does
	out *os.File

	mu      sync.Mutex // guards the rest
	last    int
	waiting map[int]chan answer
	events  map[string]chan struct{} // closed at the next event of that name
	wrong   []string                 // what the console has complained of
	gone    error
}

type answer struct {
	result json.RawMessage
	err    error
}

// message is what Chromium writes.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start starts Chromium, which ends with the test. The script is internal/tools/chromium.sh,
// from where the test is. Where there is no browser, Start skips the test.
func Start(t *testing.T, script string) *Browser {
	t.Helper()
	find := exec.Command(script)
	var why bytes.Buffer
	find.Stderr = &why
	path, err := find.Output()
	if err != nil {
		t.Skipf("no browser: %v: %s", err, strings.TrimSpace(why.String()))
	}
	toIt, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, fromIt, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(strings.TrimSpace(string(path)), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--hide-scrollbars", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toIt, fromIt} // 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toIt.Close()
	fromIt.Close()
	b := &Browser{T: t, out: out, waiting: make(map[int]chan answer), events: make(map[string]chan struct{})}
	var reader sync.WaitGroup
	reader.Go(func() { b.read(in) })
	t.Cleanup(func() {
		out.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		in.Close()
		reader.Wait()
	})
	return b
}

// read takes what Chromium says, until it ends.
func (b *Browser) read(in *os.File) {
	r := bufio.NewReader(in)
	for {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.gone = fmt.Errorf("the browser has gone: %w", err)
			for _, c := range b.waiting {
				c <- answer{err: b.gone}
			}
			clear(b.waiting)
			b.mu.Unlock()
			return
		}
		b.take(&m)
		b.mu.Unlock()
	}
}

// take deals with one message.
func (b *Browser) take(m *message) {
	switch m.Method {
	case "":
		a := answer{result: m.Result}
		if m.Error != nil {
			a.err = fmt.Errorf("the browser says: %s", m.Error.Message)
		}
		if c := b.waiting[m.ID]; c != nil {
			c <- a
			delete(b.waiting, m.ID)
		}
		return
	case "Runtime.exceptionThrown", "Log.entryAdded":
		b.wrong = append(b.wrong, string(m.Params))
	case "Runtime.consoleAPICalled":
		b.wrong = append(b.wrong, string(m.Params))
	}
	if c := b.events[m.Method]; c != nil {
		close(c)
		delete(b.events, m.Method)
	}
}

// Tab opens a page and returns its session.
func (b *Browser) Tab() *Tab {
	b.T.Helper()
	var made struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var got struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &got)
	tab := &Tab{b, got.SessionID, made.TargetID}
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		tab.Call(domain+".enable", nil, nil)
	}
	return tab
}

// call asks for something and waits for the answer; result may be nil.
func (b *Browser) call(session, method string, params map[string]any, result any) {
	b.T.Helper()
	b.mu.Lock()
	b.last++
	id, done := b.last, make(chan answer, 1)
	b.waiting[id] = done
	if b.gone != nil {
		done <- answer{err: b.gone}
	}
	b.mu.Unlock()
	request := map[string]any{"id": id, "method": method}
	if params != nil {
		request["params"] = params
	}
	if session != "" {
		request["sessionId"] = session
	}
	text, err := json.Marshal(request)
	if err != nil {
		b.T.Fatal(err)
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		b.T.Fatalf("%s: %v", method, err)
	}
	select {
	case a := <-done:
		if a.err != nil {
			b.T.Fatalf("%s: %v", method, a.err)
		}
		if result != nil {
			if err := json.Unmarshal(a.result, result); err != nil {
				b.T.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(testproc.Patience):
		b.T.Fatalf("%s: no answer", method)
	}
}

// Complaints returns what was on the console, and forgets it.
func (b *Browser) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := b.wrong
	b.wrong = nil
	return wrong
}

// A tab is one page of the browser.
type Tab struct {
	Browser     *Browser
	session, id string
}

func (p *Tab) Call(method string, params map[string]any, result any) {
	p.Browser.T.Helper()
	p.Browser.call(p.session, method, params, result)
}

// next returns a channel that is closed at the next event of that name.
func (p *Tab) next(event string) <-chan struct{} {
	came := make(chan struct{})
	p.Browser.mu.Lock()
	defer p.Browser.mu.Unlock()
	p.Browser.events[event] = came
	return came
}

// Event waits for the next event of that name.
func (p *Tab) Event(name string) {
	p.Browser.T.Helper()
	select {
	case <-p.next(name):
	case <-time.After(testproc.Patience):
		p.Browser.T.Fatalf("no %s", name)
	}
}

// Open goes to a URL and waits until it is there.
func (p *Tab) Open(url string) {
	p.Browser.T.Helper()
	loaded := p.next("Page.loadEventFired")
	var got struct{ ErrorText string }
	p.Call("Page.navigate", map[string]any{"url": url}, &got)
	if got.ErrorText != "" {
		p.Browser.T.Fatalf("open %s: %s", url, got.ErrorText)
	}
	select {
	case <-loaded:
	case <-time.After(testproc.Patience):
		p.Browser.T.Fatalf("open %s: it does not load", url)
	}
}

// Close closes the page.
func (p *Tab) Close() {
	p.Browser.T.Helper()
	p.Browser.call("", "Target.closeTarget", map[string]any{"targetId": p.id}, nil)
}

// Eval runs a script, awaits its promise and stores its value.
func (p *Tab) Eval(script string, value any) {
	p.Browser.T.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	p.Call("Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}, &got)
	if got.ExceptionDetails != nil {
		p.Browser.T.Fatalf("%s: %s", script, got.ExceptionDetails)
	}
	if value != nil {
		if err := json.Unmarshal(got.Result.Value, value); err != nil {
			p.Browser.T.Fatalf("%s: %v in %s", script, err, got.Result.Value)
		}
	}
}

// Until waits until a condition holds in the page.
func (p *Tab) Until(condition string) {
	p.Browser.T.Helper()
	p.Eval(`new Promise((resolve) => { const look = () => (`+condition+`) ? resolve() : setTimeout(look, 20); look(); })`, nil)
}

// Width makes the window so many pixels wide, and light or dark.
func (p *Tab) Width(pixels int, scheme string) {
	p.Browser.T.Helper()
	p.Call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": pixels < 600}, nil)
	p.Call("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Screenshot writes the whole page to a file.
func (p *Tab) Screenshot(path string) {
	p.Browser.T.Helper()
	var got struct{ Data string }
	p.Call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &got)
	image, err := base64.StdEncoding.DecodeString(got.Data)
	if err == nil {
		err = os.WriteFile(path, image, 0o644)
	}
	if err != nil {
		p.Browser.T.Fatal(err)
	}
}
