package auth

import (
	"fmt"
	"strings"
)

// TokenVariable has the job's token where no file of --rdzv-conf does. No option does, since
// everybody on a host can read command lines.
const TokenVariable = "MUSTER_TOKEN"

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

// HideSecrets is a text of --rdzv-conf to be shown. Where a secret has a comma, what is
// after it is hidden, too, up to the next key.
func HideSecrets(conf string) string {
	pairs := strings.Split(conf, ",")
	secret := false
	for i, pair := range pairs {
		key, _, hasValue := strings.Cut(pair, "=")
		switch secret = IsSecret(key) || secret && !hasValue; {
		case secret && hasValue:
			pairs[i] = strings.Trim(key, " \t\r\n'\"") + "=***"
		case secret:
			pairs[i] = "***"
		}
	}
	return strings.Join(pairs, ",")
}

// IsSecret reports whether a key of --rdzv-conf names a secret, by its sound, since a key that
// is misspelt does so too. What is read from a file is named by the file's path.
func IsSecret(key string) bool {
	key = strings.Trim(key, " \t\r\n'\"")
	if key == "token_file" || key == "password_file" {
		return false
	}
	key = strings.ToLower(key)
	return strings.Contains(key, "pass") || strings.Contains(key, "token") || strings.Contains(key, "secret")
}
