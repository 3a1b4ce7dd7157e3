package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"pando.run/pando"
)

// JoinPath is the path for requests for membership.
const JoinPath = "/peer/join"

const (
	joinWaitMax  = 10 * time.Second
	joinBytesMax = 64 << 10
)

// Joining is a host's request to be a member, or for a new certificate.
type Joining struct {
	Token    string         `json:"-"` // in a header; none: its certificate names the host
	From     netip.Addr     `json:"-"` // of the sender
	Host     pando.HostName `json:"host"`
	Address  string         `json:"address"`
	Address6 string         `json:"address6,omitempty"`
	Layout   int            `json:"layout"` // that it writes
	Version  string         `json:"version"`
	Request  []byte         `json:"request"`      // for a certificate, DER
	Now      time.Time      `json:"now,omitzero"` // by its clock; zero: an earlier build
}

// Joined is the answer to a new member.
type Joined struct {
	Slot        int    `json:"slot"`
	Store       string `json:"store"`       // endpoint of the registry
	Certificate []byte `json:"certificate"` // DER
	Authority   []byte `json:"authority"`   // DER
	// Probes is the key of the probes between hosts. Nil: the server is of an earlier build.
	Probes []byte `json:"probes,omitempty"`
}

// Join asks the server at an address for membership. Errors: ErrForbidden and ErrInvalid for the
// token, ErrExists, ErrUnsupported for another layout, ErrUnavailable without an answer.
func Join(ctx context.Context, server string, identity *tls.Config, j Joining) (Joined, error) {
	own, _ := netip.ParseAddr(j.Address) // the server compares the two
	var out Joined
	err := post(ctx, identity, own, "https://"+server+JoinPath, j.Token, j, &out)
	if err != nil {
		return Joined{}, fmt.Errorf("join the cluster of %s: %w", server, err)
	}
	return out, nil
}

// post sends a request to a server from an own address, and reads its answer. A zero address leaves
// the choice to the kernel.
func post(
	ctx context.Context, identity *tls.Config, own netip.Addr, url, token string, request, answer any,
) error {
	ctx, cancel := context.WithTimeout(ctx, joinWaitMax)
	defer cancel()
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	dialer := net.Dialer{}
	if own.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))
	}
	t := &http.Transport{
		TLSClientConfig: identity, DisableKeepAlives: true, DialContext: dialer.DialContext,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: the server's address in %q: %w", pando.ErrInvalid, url, err)
	}
	if token != "" {
		req.Header.Set("Authorization", bearer+token)
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return unanswered(req.URL.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return readProblem(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, joinBytesMax)).Decode(answer); err != nil {
		return unanswered(req.URL.Host, err)
	}
	return nil
}

// unanswered distinguishes a refused server from an unreachable one.
func unanswered(server string, err error) error {
	if isTrust(err) {
		return err
	}
	return fmt.Errorf("%w: no server answers at %s (%w); is it up, and may this host reach that port?",
		pando.ErrUnavailable, server, err)
}

// bearer precedes a token in its header.
const bearer = "Bearer "

// JoinHandler serves JoinPath. It calls check before it reads a byte of a stranger's request; check
// returns an error for a bad token. The argument known of admit is the asker's verified
// certificate, or nil.
func JoinHandler(check func(token string) error,
	admit func(ctx context.Context, j Joining, known *x509.Certificate) (Joined, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, known := strings.TrimPrefix(r.Header.Get("Authorization"), bearer), Shown(r)
		if known == nil {
			if err := check(token); err != nil {
				writeProblem(w, err)
				return
			}
		}
		j := Joining{Token: token}
		if err := json.NewDecoder(io.LimitReader(r.Body, joinBytesMax)).Decode(&j); err != nil {
			writeProblem(w, fmt.Errorf("%w: the request to join: %w", pando.ErrInvalid, err))
			return
		}
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			j.From = from.Addr().Unmap()
		}
		out, err := admit(r.Context(), j, known)
		answer(w, out, err)
	})
}

// Shown returns the asker's verified certificate, or nil.
func Shown(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return r.TLS.VerifiedChains[0][0]
}
