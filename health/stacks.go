package health

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/text"
)

// ReadToken reads Config.TokenFile. The error says what is wrong with it.
func ReadToken(path string) (string, error) {
	token, err := auth.ReadSecret("health token file", path)
	if err == nil && (strings.Trim(token, " ") != token || strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' })) {
		err = fmt.Errorf("health token file: no HTTP header can carry what is in %s: want one line of ASCII without control characters, "+
			"and no blank at its ends, for example from `openssl rand -hex 32`", path)
	}
	return token, cmp.Or(err, auth.CheckToken(token))
}

// authorized says whether a request has the token. No page of another site can send it: a browser
// asks first whether it may send this header, and is not told that it may.
func (s *Server) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256([]byte(s.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

// stacks answers POST /v1/autopsy with what the workers of all hosts do, as `muster dump` prints it.
func (s *Server) stacks(w http.ResponseWriter, r *http.Request) reply {
	if !s.authorized(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return textReply(http.StatusUnauthorized, "this needs the token of --health-token-file; send it as Authorization: Bearer TOKEN")
	}
	if !s.looking.TryLock() {
		return busy("somebody is looking at the workers already")
	}
	defer s.looking.Unlock()
	host := s.hostName(r.Context())
	reason := text.Line("the status page of "+host, maxReason)
	looked := make(chan *autopsy.Report, 1)
	var missing []string
	go func() {
		ctx, cancel := context.WithTimeout(r.Context(), autopsyTime)
		defer cancel()
		own := &autopsy.Report{Reason: reason, Host: host}
		body, err := s.cfg.Look(ctx, reason, "")
		if err == nil {
			err = json.Unmarshal(body, own)
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s (%v)", host, err))
		}
		looked <- own
	}()
	var peers autopsy.Peers
	done, others := &Done{}, []*autopsy.Report{}
	s.onOthers(r, done, url.Values{"reason": {reason}}, autopsyTime, func(body []byte) error {
		report, err := peers.Read(body)
		if err == nil {
			others = append(others, report)
		}
		return err
	})
	own := <-looked
	for _, m := range done.Missing {
		missing = append(missing, fmt.Sprintf("group rank %d (%s)", m.GroupRank, m.Why))
	}
	return reply{http.StatusOK, plain, []byte(own.With(others, missing).Answer())}
}
