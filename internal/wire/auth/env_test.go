package auth_test

import (
	"testing"

	"github.com/muster-run/muster/internal/wire/auth"
)

func TestHideSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"user=u,password=S3cret":            "user=u,password=***",
		"user=u, password = a=b ,bind=::1":  "user=u,password=***,bind=::1",
		"password_file=/f,token_file=/t":    "password_file=/f,token_file=/t",
		"user=u,\n\tpassword=S3cret":        "user=u,password=***",
		"PASSWORD=a,passwd=b,pass=c":        "PASSWORD=***,passwd=***,pass=***",
		"password_=a,token=b,my-Secret=c":   "password_=***,token=***,my-Secret=***",
		"tokenfile=a,Token_file=b":          "tokenfile=***,Token_file=***",
		"password=a,S3cret,,b,bind=::1,c":   "password=***,***,***,***,bind=::1,c",
		"allow=10.0.0.0/8,::1,password=a,b": "allow=10.0.0.0/8,::1,password=***,***",
		"'password=S3cret'":                 "password=***",
		"user=u,token:S3cret,b":             "user=u,***,***",
		"password":                          "***",
	} {
		if got := auth.HideSecrets(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestIsSecret(t *testing.T) {
	for key, secret := range map[string]bool{
		"password": true, "PASSWORD": true, "passwd": true, "pass": true, "password_": true, "etcd_password": true,
		"token": true, "tokenfile": true, "Token_file": true, "secret": true, "client_secret": true, " 'token'": true,
		"token_file": false, "password_file": false, " token_file ": false, "user": false, "bind": false, "key": false, "": false,
	} {
		if got := auth.IsSecret(key); got != secret {
			t.Errorf("%q names a secret: %t", key, got)
		}
	}
}
