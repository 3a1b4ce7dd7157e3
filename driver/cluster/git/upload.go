package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"pando.run/pando"
	"pando.run/pando/state"
)

// ask is one round of a client's request: its wants, its haves, and whether it is done.
type ask struct {
	wants, haves []pando.ObjectID
	theirEdge    map[pando.ObjectID]bool // the client has these commits without their parents
	depth        int                     // of history; 0: all of it
	spoke        bool                    // sent a line after its wants, unlike a request for the cut
	done         bool
	multiAck     bool
	sideband     bool
}

// readAsk parses a request. A client that needs nothing sends the zero ask, without wants.
func readAsk(in *bytes.Reader) (*ask, error) {
	if in.Len() == 0 {
		return nil, fmt.Errorf("%w: the request is empty", pando.ErrInvalid)
	}
	if first := make([]byte, 4); in.Len() == 4 {
		if _, err := in.ReadAt(first, 0); err == nil && bytes.Equal(first, pktline.FlushPkt) {
			return &ask{}, nil
		}
	}
	req := packp.NewUploadRequest()
	if err := req.Decode(in); err != nil {
		return nil, fmt.Errorf("%w: the request: %w", pando.ErrInvalid, err)
	}
	a := &ask{
		wants: idsOf(req.Wants), theirEdge: map[pando.ObjectID]bool{},
		multiAck: req.Capabilities.Supports(capability.MultiACKDetailed),
		sideband: req.Capabilities.Supports(capability.Sideband64k),
	}
	for _, id := range req.Shallows {
		a.theirEdge[pando.ObjectID(id)] = true
	}
	depth, ok := req.Depth.(packp.DepthCommits)
	if !ok {
		return nil, fmt.Errorf("%w: history can be cut by --depth only", pando.ErrInvalid)
	}
	a.depth = int(depth)
	return a, a.readHaves(in)
}

func (a *ask) readHaves(in io.Reader) error {
	lines := pktline.NewScanner(in)
	for lines.Scan() {
		a.spoke = true
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\n"))
		hash, have := bytes.CutPrefix(line, []byte("have "))
		switch {
		case len(line) == 0: // a flush between two rounds
		case have && plumbing.IsHash(string(hash)):
			a.haves = append(a.haves, pando.ObjectID(plumbing.NewHash(string(hash))))
		case string(line) == "done":
			a.done = true
			return nil
		default:
			return fmt.Errorf("%w: the request: want \"have HASH\" or \"done\", got %.60q",
				pando.ErrInvalid, line)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: the request: %w", pando.ErrInvalid, err)
	}
	return nil
}

func idsOf(hashes []plumbing.Hash) []pando.ObjectID {
	out := make([]pando.ObjectID, len(hashes))
	for n, h := range hashes {
		out[n] = pando.ObjectID(h)
	}
	return out
}

// upload answers one round of a clone or a fetch.
func (h handler) upload(w http.ResponseWriter, r *http.Request, repo *repository) {
	in, err := body(r)
	var a *ask
	if err == nil {
		a, err = readAsk(in)
	}
	if err != nil {
		refuse(w, statusOf(err), err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/x-"+uploadPack+"-result")
	if len(a.wants) == 0 {
		return
	}
	out := pktline.NewEncoder(w)
	if err := repo.check(a.wants); err != nil {
		_ = out.Encodef("ERR %s\n", err) // git prints it; the client may be gone
		return
	}
	done, err := h.turn(r.Context(), repo.service.Tenant)
	if err != nil {
		_ = out.Encodef("ERR %s\n", err) // the client may be gone
		return
	}
	defer done()
	if err := repo.answer(r.Context(), w, a); err != nil {
		report(out, a, err)
	}
}

// turn waits until a pack of a tenant's state may be made. Operators have the tenant default.
func (h handler) turn(ctx context.Context, t pando.Tenant) (done func(), err error) {
	if t == pando.DefaultTenant {
		return h.packs.TakeAsOperator(ctx, nil)
	}
	return h.packs.Take(ctx, t, nil)
}

// report sends an error to the client in the middle of an answer.
func report(out *pktline.Encoder, a *ask, err error) {
	if a.sideband {
		// The client may be gone.
		_ = out.Encode(sideband.ErrorMessage.WithPayload([]byte(err.Error() + "\n")))
	} else {
		_ = out.Encodef("ERR %s\n", err)
	}
}

// check refuses objects that are not commits of this service. A client may want a head that has
// moved since it saw it.
func (r *repository) check(wants []pando.ObjectID) error {
	heads := r.heads()
	if !slices.ContainsFunc(wants, func(id pando.ObjectID) bool {
		return !slices.Contains(heads, id)
	}) {
		return nil
	}
	walk := state.Walk{Objects: r.objects, Edge: r.edge}
	if err := walk.Commits(heads, nil); err != nil {
		return err
	}
	for _, id := range wants {
		if !walk.Saw(id) {
			return fmt.Errorf("upload-pack: not our ref %s", id)
		}
	}
	return nil
}

func (r *repository) heads() []pando.ObjectID {
	out := make([]pando.ObjectID, 0, len(r.refs))
	for _, id := range r.refs {
		out = append(out, id)
	}
	return out
}

// answer is the server's part of a fetch in version 0 over HTTP: the cut of history, the common
// commits, the pack.
func (r *repository) answer(ctx context.Context, w io.Writer, a *ask) error {
	out := pktline.NewEncoder(w)
	edge := r.edge
	if a.depth > 0 {
		var err error
		if edge, err = r.cut(out, a); err != nil {
			return err
		}
	}
	if !a.spoke {
		return nil
	}
	common, ready, err := r.common(a)
	if err != nil {
		return err
	}
	if err := acknowledge(out, a, common, ready); err != nil || !a.done {
		return err
	}
	return r.send(ctx, w, a, common, edge)
}

// cut sends where a clone of limited depth ends, and which of the client's shallow commits get
// their parents now.
func (r *repository) cut(out *pktline.Encoder, a *ask) (map[pando.ObjectID]bool, error) {
	edge := map[pando.ObjectID]bool{}
	seen := map[pando.ObjectID]bool{}
	level := a.wants
	for depth := 1; len(level) > 0; depth++ {
		var next []pando.ObjectID
		for _, id := range level {
			if seen[id] {
				continue
			}
			seen[id] = true
			parents, err := state.Parents(r.objects, id)
			if err != nil {
				return nil, err
			}
			if len(parents) > 0 && (depth >= a.depth || r.edge[id]) {
				edge[id] = true
				continue
			}
			next = append(next, parents...)
		}
		level = next
	}
	for id := range edge {
		if !a.theirEdge[id] {
			if err := out.Encodef("shallow %s", id); err != nil {
				return nil, err
			}
		}
	}
	for id := range a.theirEdge {
		if seen[id] && !edge[id] {
			if err := out.Encodef("unshallow %s", id); err != nil {
				return nil, err
			}
		}
	}
	return edge, out.Flush()
}

// common returns the client's commits that this repository has. ready reports that every want
// descends from one of them, so that the client need not send more.
func (r *repository) common(a *ask) (common []pando.ObjectID, ready bool, err error) {
	if len(a.haves) == 0 {
		return nil, false, nil
	}
	ours := state.Walk{Objects: r.objects, Edge: r.edge}
	if err := ours.Commits(append(r.heads(), a.wants...), nil); err != nil {
		return nil, false, err
	}
	for _, id := range a.haves {
		if ours.Saw(id) {
			common = append(common, id)
		}
	}
	if len(common) == 0 {
		return nil, false, nil
	}
	for _, want := range a.wants {
		under := state.Walk{Objects: r.objects, Edge: r.edge}
		if err := under.Commits([]pando.ObjectID{want}, nil); err != nil {
			return nil, false, err
		}
		if !slices.ContainsFunc(common, under.Saw) {
			return common, false, nil
		}
	}
	return common, true, nil
}

// acknowledge answers the haves: with all common ones if the client supports that, else with the
// first.
func acknowledge(out *pktline.Encoder, a *ask, common []pando.ObjectID, ready bool) error {
	var errs []error
	if a.multiAck {
		for _, id := range common {
			errs = append(errs, out.Encodef("ACK %s common\n", id))
		}
		if ready && !a.done {
			errs = append(errs, out.Encodef("ACK %s ready\n", common[len(common)-1]))
		}
	}
	switch {
	case len(common) == 0, a.multiAck && !a.done:
		errs = append(errs, out.EncodeString("NAK\n"))
	case a.multiAck:
		errs = append(errs, out.Encodef("ACK %s\n", common[len(common)-1]))
	default:
		errs = append(errs, out.Encodef("ACK %s\n", common[0]))
	}
	return errors.Join(errs...)
}

// send writes the pack of the objects that the wants reach and the client does not have.
func (r *repository) send(
	ctx context.Context, w io.Writer, a *ask, common []pando.ObjectID, edge map[pando.ObjectID]bool,
) error {
	walk := state.Walk{Objects: r.objects, Edge: map[pando.ObjectID]bool{}}
	for _, m := range []map[pando.ObjectID]bool{r.edge, a.theirEdge} {
		for id := range m {
			walk.Edge[id] = true
		}
	}
	if err := walk.From(common, nil); err != nil {
		return err
	}
	var list []pando.ObjectID
	collect := func(_ pando.ObjectKind, id pando.ObjectID) error {
		list = append(list, id)
		return ctx.Err()
	}
	walk.Edge = edge
	if err := walk.From(r.toSend(a, walk.Saw, edge), collect); err != nil {
		return err
	}
	if !a.sideband {
		return writePack(ctx, w, r.objects, list)
	}
	mux := sideband.NewMuxer(sideband.Sideband64k, w)
	if err := writePack(ctx, mux, r.objects, list); err != nil {
		return err
	}
	return pktline.NewEncoder(w).Flush()
}

// toSend returns the commits from which the pack is gathered. These are the wants, and the parents
// that shallow commits of the client get within the new depth.
func (r *repository) toSend(
	a *ask, had func(pando.ObjectID) bool, edge map[pando.ObjectID]bool,
) []pando.ObjectID {
	from := slices.Clone(a.wants)
	if a.depth == 0 {
		return from
	}
	for id := range a.theirEdge {
		if !had(id) || edge[id] {
			continue
		}
		if parents, err := state.Parents(r.objects, id); err == nil {
			from = append(from, parents...)
		}
	}
	return from
}
