// Package git serves the states of services to `git clone` and `git fetch`, for reading only. It
// uses git's smart HTTP protocol in version 0, which every git client supports.
//
// It never writes an object or moves a ref. The caller of Handler supplies the head of main. A
// client gets the objects that a service's main and its instances' branches reach, and none of any
// other service.
package git

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"pando.run/pando"
	"pando.run/pando/access/turns"
	"pando.run/pando/state"
)

const (
	requestBytesMax = 4 << 20 // of a POST, unpacked: a client sends at most 32 KiB of haves per round
	mainBranch      = "refs/heads/main"
	instanceBranch  = "refs/heads/instance/"
	uploadPack      = "git-upload-pack"
)

// packTurns are the packs that are made at the same time. The tenant of the state pays for them.
var packTurns = turns.Bound{Total: 4, Each: 2, Reserve: 1, Waiting: 64}

// Resolve returns the objects of a service and the head of its main, or ErrNotFound before the
// first push.
type Resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)

// Handler serves /state/NAME.git and /state/TENANT/NAME.git.
func Handler(resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)) http.Handler {
	return handler{resolve: resolve, packs: turns.New[pando.Tenant](packTurns)}
}

type handler struct {
	resolve Resolve
	packs   *turns.Queue[pando.Tenant] // for each pack in progress
}

// repository is one service's state at the moment of a request.
type repository struct {
	objects pando.Objects
	service pando.ServiceKey
	main    pando.ObjectID
	refs    map[string]pando.ObjectID // by their full name
	edge    map[pando.ObjectID]bool
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, what, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/state/"), ".git/")
	key, err := pando.ParseServiceKey(name)
	if !ok || err != nil {
		refuse(w, http.StatusNotFound, "want /state/NAME.git or /state/TENANT/NAME.git")
		return
	}
	pushes := what == "git-receive-pack" ||
		what == "info/refs" && r.FormValue("service") == "git-receive-pack"
	switch {
	case pushes:
		refuse(w, http.StatusForbidden, "the state of a service can be cloned and fetched, not pushed "+
			"to: instances change it through PUT and POST /v1/self/state/… on their own socket")
		return
	case what == "info/refs" && r.FormValue("service") != uploadPack:
		refuse(w, http.StatusForbidden,
			"this is git's smart HTTP protocol only: ask with git 1.6.6 or newer")
		return
	case what == "info/refs" && r.Method != http.MethodGet, what == uploadPack &&
		r.Method != http.MethodPost:
		refuse(w, http.StatusMethodNotAllowed, "want GET info/refs or POST "+uploadPack)
		return
	case what != "info/refs" && what != uploadPack:
		refuse(w, http.StatusNotFound, "want info/refs or "+uploadPack)
		return
	}
	repo, err := h.open(key)
	if err != nil {
		refuse(w, statusOf(err), err.Error())
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	if what == "info/refs" {
		repo.advertise(w)
		return
	}
	h.upload(w, r, repo)
}

func refuse(w http.ResponseWriter, status int, why string) { http.Error(w, why, status) }

func statusOf(err error) int {
	switch {
	case errors.Is(err, pando.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, pando.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, pando.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusInternalServerError
}

func (h handler) open(key pando.ServiceKey) (*repository, error) {
	objects, main, err := h.resolve(key)
	if err != nil {
		return nil, err
	}
	repo := &repository{
		objects: objects, service: key, main: main, refs: map[string]pando.ObjectID{mainBranch: main},
	}
	branches, err := state.Branches(objects, key)
	if err != nil {
		return nil, err
	}
	for i, head := range branches {
		repo.refs[instanceBranch+string(i)] = head
	}
	repo.edge, err = state.Edge(objects, key)
	return repo, err
}

// advertise lists the refs. It lists the edge of trimmed history as git lists the edge of a shallow
// repository. A clone is then shallow, and git's checks find it complete.
func (r *repository) advertise(w http.ResponseWriter) {
	adv := packp.NewAdvRefs()
	adv.Prefix = [][]byte{[]byte("# service=" + uploadPack), pktline.Flush}
	head := plumbing.Hash(r.main)
	adv.Head = &head
	for name, id := range r.refs {
		adv.References[name] = plumbing.Hash(id)
	}
	for id := range r.edge {
		adv.Shallows = append(adv.Shallows, plumbing.Hash(id))
	}
	var errs []error
	for _, c := range []capability.Capability{
		capability.MultiACKDetailed, capability.Sideband64k, capability.Shallow, capability.NoProgress,
	} {
		errs = append(errs, adv.Capabilities.Set(c))
	}
	errs = append(errs, adv.Capabilities.Set(capability.SymRef, "HEAD:"+mainBranch),
		adv.Capabilities.Set(capability.Agent, "pando"))
	var b bytes.Buffer
	if err := errors.Join(append(errs, adv.Encode(&b))...); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/x-"+uploadPack+"-advertisement")
	_, _ = w.Write(b.Bytes()) // the client may be gone
}

// body reads a request, which git compresses if it is long.
func body(r *http.Request) (*bytes.Reader, error) {
	in := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(io.LimitReader(r.Body, requestBytesMax))
		if err != nil {
			return nil, fmt.Errorf("%w: unpack the request: %w", pando.ErrInvalid, err)
		}
		in = z
	}
	b, err := io.ReadAll(io.LimitReader(in, requestBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("%w: read the request: %w", pando.ErrInvalid, err)
	}
	if len(b) > requestBytesMax {
		return nil, fmt.Errorf("the request: %w: at most %d bytes", pando.ErrTooLarge, requestBytesMax)
	}
	return bytes.NewReader(b), nil
}
