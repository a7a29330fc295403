package launch

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/rendezvous"
)

// Settings returns the rendezvous' settings: those of its Conf, and the environment's
// token unless Conf names a file with one.
func (cfg *Config) Settings() (rendezvous.Settings, error) {
	settings, err := rendezvous.ParseSettings(cfg.Rendezvous.Backend, cfg.Rendezvous.Conf)
	if settings.TokenFile == "" {
		token, bad := auth.TokenOf(cfg.LookupEnv)
		settings.Token, err = token, errors.Join(err, bad)
	}
	return settings, err
}

// withoutSecrets is the environment for workers and whatever else the agent starts.
func withoutSecrets(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		conf, ok := strings.CutPrefix(entry, "PET_RDZV_CONF=")
		return ok && auth.HideSecrets(conf) != conf || strings.HasPrefix(entry, auth.TokenVariable+"=") ||
			strings.HasPrefix(entry, envTemplate+"=")
	})
}
