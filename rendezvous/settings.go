package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/auth"
)

// Settings are the values of --rdzv-conf. A zero is the default, if there is one.
// Source: RendezvousSettings, RendezvousTimeout and create_handler in
// dynamic_rendezvous.py and c10d_rendezvous_backend.py.
type Settings struct {
	// Join bounds one whole Next. Key join_timeout, default 600 s.
	Join time.Duration
	// LastCall is how long a round stays open for late nodes once the minimum
	// has joined. Key last_call_timeout, default 30 s.
	LastCall time.Duration
	// Close bounds closing. Key close_timeout, default 30 s.
	Close time.Duration
	// Heartbeat bounds writing one keep-alive. Key heartbeat_timeout, default 5 s.
	Heartbeat time.Duration
	// KeepAliveInterval is the time between keep-alives. Key
	// keep_alive_interval, default 5 s.
	KeepAliveInterval time.Duration
	// KeepAliveMaxAttempt is how many keep-alives a node may miss before it
	// counts as dead. Key keep_alive_max_attempt, default 3.
	KeepAliveMaxAttempt int
	// CASBackoffMax is the longest random pause after a lost compare-and-set.
	// Key cas_backoff_max_seconds, default 0.
	CASBackoffMax time.Duration
	// ReadTimeout is the timeout of the store. Key read_timeout, default 60 s.
	ReadTimeout time.Duration
	// Connect bounds connecting to the store of c10d. Default Join; key read_timeout sets it, too.
	Connect time.Duration
	// Timeout is how long the static backend waits for its nodes. Key timeout,
	// default 900 s as torchrun sets it.
	Timeout time.Duration
	// IsHost reports whether this node hosts the store; nil means: find out from
	// the endpoint. Key is_host.
	IsHost *bool
	// StoreType is "tcp" or "file". Key store_type, default tcp.
	StoreType string
	// Access says where the stores of this node listen and who may connect.
	Access
	// Etcd is how etcd knows this agent. Keys user, password; or password_file, whose content
	// is Password unless that is given.
	Etcd struct{ User, Password, PasswordFile string }
	// DataDir is where a quorum's member keeps its data; empty means a temporary
	// directory. Key data_dir.
	DataDir string
	// Unknown has the keys that the backend does not read, and for each the key that was
	// probably meant, "" if none is alike.
	Unknown map[string]string
}

// Access is what of the Settings is about connections between hosts.
type Access struct {
	// Bind is the address at which the stores of this node listen; empty means all, or
	// the endpoint's if that is a loopback address and the job has one host, but for etcd, and for
	// quorum with several members. Key bind.
	Bind string
	// Allow lists the networks whose hosts may connect to a store that this node
	// hosts; empty means all. Key allow, with commas between them.
	Allow []netip.Prefix
	// OpenWorkersStore lets workers connect from wherever Allow says, also where the store
	// knows their hosts. Key open_workers_store, default false.
	OpenWorkersStore bool
	// TLS names files in PEM: whom to trust, and this host's certificate and key. All three
	// are for connections between agents and to a quorum's members, which are then by TLS 1.3
	// with certificates on both ends, and to etcd; etcd may do with less. Keys cacert (or
	// ca_cert), cert (ssl_cert), key (ssl_cert_key).
	TLS struct{ CACert, Cert, Key string }
	// Token is what the agents of the job prove to each other that they have; ""
	// means what is in the file TokenFile, and nothing without one. Key token_file; there
	// is none for Token.
	Token, TokenFile string
}

// A key is one of --rdzv-conf.
type key struct {
	name     string
	backends string // that read it; "" means all
	// set takes a value over and returns "", or says what is wanted instead.
	set func(s *Settings, value string) (want string)
}

var keys = [...]key{
	{"join_timeout", "c10d etcd quorum", seconds(func(s *Settings) *time.Duration { return &s.Join })},
	{"last_call_timeout", "c10d etcd quorum", seconds(func(s *Settings) *time.Duration { return &s.LastCall })},
	{"timeout", "static", seconds(func(s *Settings) *time.Duration { return &s.Timeout })},
	{"close_timeout", "", seconds(func(s *Settings) *time.Duration { return &s.Close })},
	{"heartbeat_timeout", "", seconds(func(s *Settings) *time.Duration { return &s.Heartbeat })},
	{"keep_alive_interval", "", seconds(func(s *Settings) *time.Duration { return &s.KeepAliveInterval })},
	{"keep_alive_max_attempt", "", setKeepAliveMaxAttempt},
	{"cas_backoff_max_seconds", "", setCASBackoffMax},
	{"read_timeout", "", seconds(func(s *Settings) *time.Duration { return &s.ReadTimeout })},
	{"is_host", "", boolean(func(s *Settings, b bool) { s.IsHost = &b })},
	{"open_workers_store", "", boolean(func(s *Settings, b bool) { s.OpenWorkersStore = b })},
	{"store_type", "c10d", setStoreType},
	{"bind", "", setBind},
	{"allow", "", setAllow},
	{"cacert", "", str(func(s *Settings) *string { return &s.TLS.CACert })},
	{"ca_cert", "", str(func(s *Settings) *string { return &s.TLS.CACert })},
	{"cert", "", str(func(s *Settings) *string { return &s.TLS.Cert })},
	{"ssl_cert", "", str(func(s *Settings) *string { return &s.TLS.Cert })},
	{"key", "", str(func(s *Settings) *string { return &s.TLS.Key })},
	{"ssl_cert_key", "", str(func(s *Settings) *string { return &s.TLS.Key })},
	{"token_file", "", str(func(s *Settings) *string { return &s.TokenFile })},
	{"user", "etcd", str(func(s *Settings) *string { return &s.Etcd.User })},
	{"password", "etcd", str(func(s *Settings) *string { return &s.Etcd.Password })},
	{"password_file", "etcd", str(func(s *Settings) *string { return &s.Etcd.PasswordFile })},
	{"data_dir", "quorum", str(func(s *Settings) *string { return &s.DataDir })},
	{"protocol", "etcd", ignore}, // http or https: the other keys say so too
	{"rank", "", ignore},         // what the launcher adds for the static backend
}

// maxSeconds keeps a number of seconds within a time.Duration.
const maxSeconds = int64(math.MaxInt64 / int64(time.Second))

func seconds(of func(*Settings) *time.Duration) func(*Settings, string) string {
	return func(s *Settings, value string) string {
		n, err := strconv.ParseInt(text.Seconds(value), 10, 64)
		if err != nil || n < 1 || n > maxSeconds {
			return "want a whole number of seconds, or a time such as 90s or 10m, at least 1s"
		}
		*of(s) = time.Duration(n) * time.Second
		return ""
	}
}

func str(of func(*Settings) *string) func(*Settings, string) string {
	return func(s *Settings, value string) string { *of(s) = value; return "" }
}

func boolean(set func(*Settings, bool)) func(*Settings, string) string {
	return func(s *Settings, value string) string {
		switch strings.ToLower(value) {
		case "1", "true", "t", "yes", "y":
			set(s, true)
		case "0", "false", "f", "no", "n":
			set(s, false)
		default:
			return "want one of 1, true, t, yes, y, 0, false, f, no, n"
		}
		return ""
	}
}

func ignore(*Settings, string) string { return "" }

func setKeepAliveMaxAttempt(s *Settings, value string) string {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return "want a whole number, at least 1"
	}
	s.KeepAliveMaxAttempt = n
	return ""
}

func setCASBackoffMax(s *Settings, value string) string {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0) || f > float64(maxSeconds) {
		return "want a number of seconds, finite and at least 0"
	}
	s.CASBackoffMax = time.Duration(f * float64(time.Second))
	return ""
}

func setStoreType(s *Settings, value string) string {
	if value = strings.ToLower(value); value != "tcp" && value != "file" {
		return "want tcp or file"
	}
	s.StoreType = value
	return ""
}

func setBind(s *Settings, value string) string {
	if _, err := netip.ParseAddr(value); err != nil {
		return "want an IP address of this host"
	}
	s.Bind = value
	return ""
}

// setAllow takes networks and single addresses.
func setAllow(s *Settings, value string) string {
	for _, text := range strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' }) {
		network, ok := admit.ParseNetwork(text)
		if !ok {
			return "want networks such as 10.0.0.0/8, with commas between them"
		}
		s.Allow = append(s.Allow, network)
	}
	return ""
}

// find returns the key of a name.
func find(name string) (k key, known bool) {
	i := slices.IndexFunc(keys[:], func(k key) bool { return k.name == name })
	if i < 0 {
		return k, false
	}
	return keys[i], true
}

// readBy reports whether a backend reads the key; without a name it says yes.
func (k *key) readBy(backend string) bool {
	return backend == "" || k.backends == "" ||
		slices.Contains(strings.Fields(k.backends), strings.TrimSuffix(backend, "-v2"))
}

// guard returns the key that closes a job to others and that one which nobody reads seems
// to be meant for; "" if it is none of those. Such a job does not start: it would be open.
func guard(backend, key string) string {
	words := strings.FieldsFunc(strings.ToLower(key), func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	for _, g := range [...]struct{ begins, meant string }{
		{"token", "token_file"}, {"secret", "token_file"}, {"auth", "token_file"}, {"allow", "allow"},
		{"bind", "bind"}, {"listen", "bind"},
		{"tls", "cacert"}, {"ssl", "cacert"}, {"ca", "cacert"}, {"cert", "cert"}, {"key", "key"},
	} {
		for _, w := range words {
			if w == g.begins || len(g.begins) > 3 && strings.HasPrefix(w, g.begins) {
				return g.meant
			}
		}
	}
	if meant := alike(backend, key); meant != "key" && auth.IsGuard(meant) {
		return meant
	}
	return ""
}

// alike returns the key that was probably meant by one that the backend does not read, ""
// if there is none.
func alike(backend, key string) string {
	switch {
	case key == "timeout":
		return "join_timeout"
	case key == "join_timeout":
		return "timeout"
	}
	var names []string
	for _, k := range keys {
		if k.readBy(backend) {
			names = append(names, k.name)
		}
	}
	return text.Nearest(key, names...)
}

// WithDefaults returns s with each default in place of a zero. ParseSettings and the
// backends do that.
func (s Settings) WithDefaults() Settings {
	s.Join = cmp.Or(s.Join, 600*time.Second)
	s.LastCall = cmp.Or(s.LastCall, 30*time.Second)
	s.Close = cmp.Or(s.Close, 30*time.Second)
	s.Heartbeat = cmp.Or(s.Heartbeat, 5*time.Second)
	s.KeepAliveInterval = cmp.Or(s.KeepAliveInterval, 5*time.Second)
	s.KeepAliveMaxAttempt = cmp.Or(s.KeepAliveMaxAttempt, 3)
	s.ReadTimeout = cmp.Or(s.ReadTimeout, 60*time.Second)
	s.Timeout = cmp.Or(s.Timeout, 900*time.Second)
	s.StoreType = cmp.Or(s.StoreType, "tcp")
	return s
}

// KeepAliveLimit is how long a node may be silent before it counts as dead: the interval
// times the attempts, as far as a duration can hold that.
func (s *Settings) KeepAliveLimit() time.Duration {
	attempts := time.Duration(max(s.KeepAliveMaxAttempt, 1))
	if s.KeepAliveInterval > math.MaxInt64/attempts {
		return math.MaxInt64
	}
	return s.KeepAliveInterval * attempts
}

// ParseSettings reads the keys and values of --rdzv-conf over the defaults, as far as
// the named backend reads them; without a name all that any backend reads. It reports
// every bad value at once. Keys that the backend does not read are no error whatever
// their values, as in torchrun; Unknown has them so that the caller can warn.
func ParseSettings(backend string, conf map[string]string) (Settings, error) {
	s := Settings{}.WithDefaults()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(conf)) {
		k, known := find(name)
		if !known || !k.readBy(backend) {
			if s.Unknown == nil {
				s.Unknown = map[string]string{}
			}
			s.Unknown[name] = alike(backend, name)
		}
		if !known {
			if meant := guard(backend, name); meant != "" {
				// Without the value, which may be a secret.
				errs = append(errs, fmt.Errorf(
					"rendezvous configuration %s: there is no such key, and without %s the job would be open; did you mean that?",
					name, meant))
			}
			continue
		}
		if k.readBy(backend) {
			want := "want a value"
			if strings.TrimSpace(conf[name]) != "" || !auth.IsGuard(name) {
				want = k.set(&s, conf[name])
			}
			if want != "" {
				errs = append(errs, fmt.Errorf("rendezvous configuration %s=%s: %s", name, conf[name], want))
			}
		}
	}
	if conf["read_timeout"] != "" {
		s.Connect = s.ReadTimeout
	}
	return s, errors.Join(errs...)
}
