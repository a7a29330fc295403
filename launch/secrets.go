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
		return ok && HideSecrets(conf) != conf || strings.HasPrefix(entry, TokenVariable+"=")
	})
}

// HideSecrets is a text of --rdzv-conf to be shown. Where a secret has a comma, what is
// after it is hidden, too, up to the next key.
func HideSecrets(conf string) string {
	pairs := strings.Split(conf, ",")
	secret := false
	for i, pair := range pairs {
		key, _, hasValue := strings.Cut(pair, "=")
		switch secret = rendezvous.IsSecret(key) || secret && !hasValue; {
		case secret && hasValue:
			pairs[i] = strings.Trim(key, " \t\r\n'\"") + "=***"
		case secret:
			pairs[i] = "***"
		}
	}
	return strings.Join(pairs, ",")
}
