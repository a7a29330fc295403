package logs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The parts of a line that one worker writes stay together while another writes;
// one that is never ended comes out after the hold, or at the end.
func TestRelayHoldsBegunLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		hold time.Duration
		do   func(a, b *os.File, shown func(string))
		want string
	}{
		{"ended in time", time.Hour, func(a, b *os.File, shown func(string)) {
			a.WriteString("rank")
			b.WriteString("other\n")
			shown("other\n")
			a.WriteString(" 0\n")
		}, "other\nrank 0\n"},
		{"never ended", time.Hour, func(a, b *os.File, shown func(string)) {
			a.WriteString("one\nrank")
			shown("one\n")
			b.WriteString("other\n")
			shown("one\nother\n")
		}, "one\nother\nrank"},
		{"a prompt", time.Millisecond, func(a, b *os.File, shown func(string)) {
			a.WriteString("name? ")
			shown("name? ")
			b.WriteString("x")
			shown("name? x")
			a.WriteString("go")
			shown("name? xgo")
		}, "name? xgo"},
		{"one worker", 0, func(a, b *os.File, shown func(string)) {
			a.WriteString("name? ")
			shown("name? ")
		}, "name? "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file, err := os.Create(filepath.Join(t.TempDir(), "console"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			to := newConsole(file)
			defer to.close()
			content := func() string {
				to.mu.Lock() // a write is whole
				defer to.mu.Unlock()
				text, err := os.ReadFile(file.Name())
				if err != nil {
					t.Error(err)
				}
				return string(text)
			}
			shown := func(want string) {
				for late := time.Now().Add(time.Minute); content() != want; {
					if time.Now().After(late) {
						t.Fatalf("the console holds %q, want %q", content(), want)
					}
				}
			}
			var relays [2]*relay
			var ends [2]*os.File
			for i := range relays {
				agent, worker, err := relayPipe()
				if err != nil {
					t.Fatal(err)
				}
				relays[i], ends[i] = newRelay(agent, to, tt.hold), worker
				go relays[i].run()
			}
			tt.do(ends[0], ends[1], shown)
			ends[1].Close()
			<-relays[1].done
			relays[0].finish()
			<-relays[0].done
			ends[0].Close()
			if got := content(); got != tt.want {
				t.Errorf("the console holds %q, want %q", got, tt.want)
			}
		})
	}
}
