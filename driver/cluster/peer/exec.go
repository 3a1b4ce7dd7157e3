package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/api/session"
)

// ExecPath is the path of the requests that run commands inside instances. Only the server may ask
// for it.
const ExecPath = "/peer/exec"

// Exec runs a command inside an instance of a host.
func (c *Client) Exec(
	ctx context.Context, h pando.Host, i pando.InstanceID, s pando.SessionSpec,
) (io.ReadWriteCloser, error) {
	u, err := c.base(h)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	q := url.Values{"instance": {string(i)}}
	if t, ok := access.TokenOf(ctx); ok {
		q.Set("tenant", string(t.Tenant))
	} else {
		q.Set("operator", "true")
	}
	u.Path, u.RawQuery = ExecPath, q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, ExecPath, err)
	}
	session.Offer(req.Header)
	resp, err := send(ctx, c, c.http, h, req)
	if err != nil {
		return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, ExecPath, outOfReach(ctx, h, err))
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer resp.Body.Close()
		return nil, fmt.Errorf("ask host %s for %s: %w", h.Name, ExecPath, readProblem(resp))
	}
	return session.Begun(resp)
}

// specBytesMax bounds the description of a session.
const specBytesMax = 1 << 20

// exec answers a request to run a command, and relays the session to its end.
func exec(a pando.HostAgent, w http.ResponseWriter, r *http.Request) {
	var s pando.SessionSpec
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, specBytesMax)).Decode(&s)
	if err != nil {
		writeProblem(w, fmt.Errorf("%w: the description of a session: %w", pando.ErrInvalid, err))
		return
	}
	if err := s.Check(); err != nil {
		writeProblem(w, err)
		return
	}
	ctx := r.Context()
	if r.FormValue("operator") != "true" { // the agent counts its sessions by tenant
		ctx = access.WithToken(ctx, access.Token{TokenKey: access.TokenKey{
			Tenant: pando.Tenant(r.FormValue("tenant")),
		}})
	}
	command, err := a.Exec(ctx, pando.InstanceID(r.FormValue("instance")), s)
	if err != nil {
		writeProblem(w, err)
		return
	}
	caller, err := session.Accept(w)
	if err != nil {
		command.Close()
		return
	}
	session.Relay(caller, command)
}
