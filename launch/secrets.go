package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/muster-run/muster/rendezvous"
)

// TokenVariable has the job's token where no file of --rdzv-conf does. No option does, since
// everybody on a host can read command lines.
const TokenVariable = "MUSTER_TOKEN"

// Settings returns those of the rendezvous: RdzvConf's, and the token of the environment
// unless RdzvConf names a file.
func (cfg *Config) Settings() (rendezvous.Settings, error) {
	settings, err := rendezvous.ParseSettings(cfg.RdzvBackend, cfg.RdzvConf)
	if settings.TokenFile == "" {
		token, bad := TokenOf(cfg.LookupEnv)
		settings.Token, err = token, errors.Join(err, bad)
	}
	return settings, err
}

// TokenOf returns the token that an environment has, if any. One that is there and empty
// is an error: what was to fill it has failed, and the job would be open.
func TokenOf(getenv func(string) (string, bool)) (string, error) {
	text, ok := getenv(TokenVariable)
	token := strings.TrimRight(text, "\r\n")
	if ok && token == "" {
		return "", fmt.Errorf("%s is set but empty: give it the job's token, or unset it", TokenVariable)
	}
	return token, nil
}

// withoutSecrets is the environment for workers and whatever else the agent starts.
func withoutSecrets(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		conf, ok := strings.CutPrefix(entry, "PET_RDZV_CONF=")
		return ok && slices.ContainsFunc(strings.Split(conf, ","), isPassword) || strings.HasPrefix(entry, TokenVariable+"=")
	})
}

// isPassword says whether a part of --rdzv-conf is the password.
func isPassword(pair string) bool {
	key, _, _ := strings.Cut(pair, "=")
	return strings.Trim(key, " \t\r\n'\"") == "password"
}

// HidePassword is a text of --rdzv-conf to be shown.
func HidePassword(conf string) string {
	pairs := strings.Split(conf, ",")
	for i, pair := range pairs {
		if isPassword(pair) {
			pairs[i] = "password=***"
		}
	}
	return strings.Join(pairs, ",")
}
