package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"pando.run/pando"
)

// ServerPath is the path at which a member asks to be a server.
const ServerPath = "/peer/server"

// Serving is a member's request to be a server.
type Serving struct {
	Token   string         `json:"-"` // in a header; none: a repetition
	Host    pando.HostName `json:"host"`
	Address string         `json:"address"` // at which the other servers will reach it
	Layout  int            `json:"layout"`  // the newest that its build reads
	Version string         `json:"version"`
	Now     time.Time      `json:"now"` // by its clock
	// Foreign means that its store is an etcd that runs without Pando.
	Foreign bool `json:"foreign,omitempty"`
}

// Handover is the answer to a new server. It goes to a verified member over mutual TLS.
type Handover struct {
	Sealing   []byte            `json:"sealing"`   // the key that opens the authority
	Authority []byte            `json:"authority"` // sealed
	Servers   map[string]string `json:"servers"`   // address by name, with the new one
}

// Serve asks the server at an address to make this member a server. Errors: ErrForbidden and
// ErrInvalid for the token, ErrExists, ErrUnavailable and ErrConflict to try again.
func Serve(
	ctx context.Context, server string, identity *tls.Config, s Serving,
) (out Handover, err error) {
	own, _ := netip.ParseAddrPort(s.Address)
	err = post(ctx, identity, own.Addr(), "https://"+server+ServerPath, s.Token, s, &out)
	if err != nil {
		return Handover{}, fmt.Errorf("become a server beside %s: %w", server, err)
	}
	return out, nil
}

// ServerHandler serves ServerPath. The argument known of hand is the asker's verified certificate.
func ServerHandler(
	hand func(ctx context.Context, s Serving, known *x509.Certificate) (Handover, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := Shown(r)
		if known == nil {
			writeProblem(w, fmt.Errorf("%w: only a member of the cluster becomes a server",
				pando.ErrForbidden))
			return
		}
		s := Serving{Token: strings.TrimPrefix(r.Header.Get("Authorization"), bearer)}
		if err := json.NewDecoder(io.LimitReader(r.Body, joinBytesMax)).Decode(&s); err != nil {
			writeProblem(w, fmt.Errorf("%w: the request to be a server: %w", pando.ErrInvalid, err))
			return
		}
		out, err := hand(r.Context(), s, known)
		answer(w, out, err)
	})
}
