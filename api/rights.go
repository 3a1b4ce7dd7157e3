package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"pando.run/pando"
	"pando.run/pando/access"
)

// rightsFace serves the operations about the rights of hosts.
type rightsFace struct{ operators access.Operators }

// routes adds its operations.
func (h rightsFace) routes(a huma.API) {
	const path = " /v1/hosts/{host}/rights/{right}"
	route(a, "allow", "PUT"+path, "Give a right to the operators of a host.",
		func(ctx context.Context, in *righting) (*nothing, error) {
			return nil, h.setRight(ctx, in, true)
		})
	route(a, "deny", "DELETE"+path, "Take a right from the operators of a host.",
		func(ctx context.Context, in *righting) (*nothing, error) {
			return nil, h.setRight(ctx, in, false)
		})
	const grants = " /v1/hosts/{host}/grants"
	route(a, "give", "PUT"+grants, "Allow a host to give something to its instances.",
		func(ctx context.Context, in *giving) (*nothing, error) {
			return nil, h.setGrant(ctx, in, true)
		})
	route(a, "withhold", "DELETE"+grants, "Let a host give something to new instances no longer.",
		func(ctx context.Context, in *giving) (*nothing, error) {
			return nil, h.setGrant(ctx, in, false)
		})
	route(a, "invite", "POST /v1/tokens", "Make a token that admits new hosts to the cluster.",
		h.invite)
}

// righting is a request about one right of a host.
type righting struct {
	Asking
	Host  pando.HostName `path:"host" doc:"name of the host" example:"host2"`
	Right pando.Right    `path:"right" enum:"deploy,exec,admit" doc:"the right"`
}

func (h rightsFace) setRight(ctx context.Context, in *righting, may bool) error {
	by, err := in.by(ctx)
	if err != nil {
		return err
	}
	return h.operators.SetRight(ctx, in.Host, in.Right, may, by)
}

// giving is a request about one grant of a host.
type giving struct {
	Asking
	Host  pando.HostName `path:"host" doc:"name of the host" example:"host2"`
	Grant string         `query:"grant" required:"true" doc:"KIND=NAME" example:"device=kvm"`
}

func (h rightsFace) setGrant(ctx context.Context, in *giving, may bool) error {
	by, err := in.by(ctx)
	if err != nil {
		return err
	}
	g, err := pando.ParseGrant(in.Grant)
	if err != nil {
		return err
	}
	return h.operators.SetGrant(ctx, in.Host, g, may, by)
}

// Inviting is the body of a request for a token.
type Inviting struct {
	Uses       int     `json:"uses" minimum:"1" maximum:"1024" doc:"hosts that the token admits"`
	ForSeconds float64 `json:"for_seconds" minimum:"0.000000001" doc:"the time that it is valid"`
}

func (h rightsFace) invite(ctx context.Context, in *struct {
	Asking
	Body Inviting
}) (*struct{ Body pando.Invitation }, error) {
	by, err := in.by(ctx)
	if err != nil {
		return nil, err
	}
	i, ok := behind(h.operators).(pando.Inviter)
	if !ok {
		return nil, fmt.Errorf("%w: this server admits no hosts", pando.ErrUnsupported)
	}
	made, err := i.Invite(ctx, in.Body.Uses, pando.Seconds(in.Body.ForSeconds), by)
	if err != nil {
		return nil, err
	}
	return &struct{ Body pando.Invitation }{made}, nil
}

// MembersClient is the part of a client about new hosts and the rights of hosts.
type MembersClient struct{ c *Client }

// Members returns the part about new hosts and the rights of hosts.
func (c *Client) Members() MembersClient { return MembersClient{c} }

// SetRight gives a right to the operators of a host, or takes it away.
func (m MembersClient) SetRight(
	ctx context.Context, h pando.HostName, r pando.Right, may bool,
) error {
	method := http.MethodPut
	if !may {
		method = http.MethodDelete
	}
	path := "/v1/hosts/" + string(h) + "/rights/" + string(r)
	_, err := call[struct{}](ctx, m.c, method, path, nil, nil)
	return err
}

// SetGrant allows a host to give something to its instances, or ends that.
func (m MembersClient) SetGrant(
	ctx context.Context, h pando.HostName, g pando.Grant, may bool,
) error {
	method := http.MethodPut
	if !may {
		method = http.MethodDelete
	}
	_, err := call[struct{}](ctx, m.c, method, "/v1/hosts/"+string(h)+"/grants",
		url.Values{"grant": {string(g)}}, nil)
	return err
}

// Invite returns a token that admits new hosts to the cluster.
func (m MembersClient) Invite(ctx context.Context, i Inviting) (pando.Invitation, error) {
	return call[pando.Invitation](ctx, m.c, http.MethodPost, "/v1/tokens", nil, i)
}
