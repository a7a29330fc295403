package text

import (
	"regexp"
	"strings"
	"sync"
)

// IsSecret reports whether a variable's or an option's name sounds like a secret.
// TOKENIZERS_PARALLELISM, MAX_TOKENS and PWD do not.
func IsSecret(name string) bool {
	if name == "PWD" || name == "OLDPWD" {
		return false
	}
	for word := range strings.FieldsFuncSeq(strings.ToUpper(name),
		func(r rune) bool { return strings.ContainsRune("_-./", r) }) {
		for _, end := range []string{"TOKEN", "SECRET", "KEY", "KEYS", "PASSWORD", "PASSWD", "PASS", "PWD", "CREDENTIAL",
			"CREDENTIALS", "CRED", "CREDS", "AUTH", "JWT", "WEBHOOK", "COOKIE"} {
			if strings.HasSuffix(strings.TrimRight(word, "0123456789"), end) {
				return true
			}
		}
	}
	return false
}

// secretValues are what may be secret in any value: a URL's user and query, and what follows an
// authorization's scheme.
var secretValues = sync.OnceValue(func() []secretValue {
	return []secretValue{
		{regexp.MustCompile(`://\S+@`), "://***@"},
		{regexp.MustCompile(`(://[^\s?]*)\?\S+`), "$1?***"},
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+\S+`), "$1 ***"},
	}
})

type secretValue struct {
	is *regexp.Regexp
	to string
}

// HideSecrets replaces what may be secret in a text, whatever it is about.
func HideSecrets(text string) string {
	for _, secret := range secretValues() {
		text = secret.is.ReplaceAllString(text, secret.to)
	}
	return text
}

// CommandLine is a command line for people to see, without the values of options whose names sound
// like a secret's: --api-key=VALUE, --api-key VALUE, api_key=VALUE.
func CommandLine(argv []string) string {
	shown := make([]string, len(argv))
	secret := false // the word is the value of the one before
	for i, word := range argv {
		name, _, inline := strings.Cut(word, "=")
		switch {
		case secret && !strings.HasPrefix(word, "-"):
			shown[i] = "***"
		case inline && !strings.ContainsAny(name, " \n") && IsSecret(name):
			shown[i] = name + "=***"
		default:
			shown[i] = HideSecrets(word)
		}
		secret = !inline && strings.HasPrefix(word, "-") && !strings.ContainsAny(name, " \n") && IsSecret(name)
	}
	return strings.Join(shown, " ")
}
