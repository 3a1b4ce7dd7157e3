package state

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"pando.run/pando"
)

// A bundle carries objects between hosts: the length and the JSON of a pando.Shipment, then each
// object as its kind, its id, its length and its body, then a zero byte. A bundle without the zero
// byte was cut off.

const (
	headBytesMax = 8 << 20  // of a shipment's JSON
	bodyBytesMax = 64 << 20 // of one object: a folder may have many names
	writeBytes   = 8 << 20  // of objects in one durable step
)

var kindBytes = map[pando.ObjectKind]byte{
	pando.BlobObject: 1, pando.TreeObject: 2, pando.CommitObject: 3,
}

var bundleKinds = [...]pando.ObjectKind{
	1: pando.BlobObject, 2: pando.TreeObject, 3: pando.CommitObject,
}

// WriteBundle writes a shipment and its objects.
func WriteBundle(
	w io.Writer, head pando.Shipment, o pando.Objects, ids []pando.ObjectID,
) error {
	b := bufio.NewWriterSize(w, 64<<10)
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	_, _ = b.Write(binary.AppendUvarint(nil, uint64(len(text)))) // Flush returns the first error
	_, _ = b.Write(text)
	for _, id := range ids {
		kind, body, err := o.Object(id)
		if err != nil {
			return fmt.Errorf("read object %s of the state of %s: %w", id, head.Service, err)
		}
		_ = b.WriteByte(kindBytes[kind])
		_, _ = b.Write(id[:])
		_, _ = b.Write(binary.AppendUvarint(nil, uint64(len(body))))
		if _, err := b.Write(body); err != nil {
			return err
		}
	}
	_ = b.WriteByte(0)
	return b.Flush()
}

// Bundle is a bundle that is being read.
type Bundle struct {
	pando.Shipment
	r *bufio.Reader
}

// ReadBundle reads the head of a bundle.
func ReadBundle(r io.Reader) (*Bundle, error) {
	b := &Bundle{r: bufio.NewReaderSize(r, 64<<10)}
	n, err := binary.ReadUvarint(b.r)
	if err != nil {
		return nil, cutOff(err)
	}
	if n > headBytesMax {
		return nil, fmt.Errorf("the head of a bundle of objects: %w: %d bytes, at most %d",
			pando.ErrTooLarge, n, headBytesMax)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(b.r, text); err != nil {
		return nil, cutOff(err)
	}
	if err := json.Unmarshal(text, &b.Shipment); err != nil {
		return nil, fmt.Errorf("%w: the head of a bundle of objects: %w", pando.ErrInvalid, err)
	}
	return b, nil
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read a bundle of objects: %w", err)
}

// next returns the next object, and false after the last one.
func (b *Bundle) next() (o pando.Object, more bool, err error) {
	kind, err := b.r.ReadByte()
	if err != nil {
		return o, false, cutOff(err)
	}
	if kind == 0 {
		return o, false, nil
	}
	if int(kind) >= len(bundleKinds) {
		return o, false, fmt.Errorf("%w: an object of kind %d", pando.ErrInvalid, kind)
	}
	o.Kind = bundleKinds[kind]
	if _, err := io.ReadFull(b.r, o.ID[:]); err != nil {
		return o, false, cutOff(err)
	}
	n, err := binary.ReadUvarint(b.r)
	if err != nil {
		return o, false, cutOff(err)
	}
	if n > bodyBytesMax {
		return o, false, fmt.Errorf("object %s: %w: %d bytes, at most %d",
			o.ID, pando.ErrTooLarge, n, bodyBytesMax)
	}
	o.Body = make([]byte, n)
	if _, err := io.ReadFull(b.r, o.Body); err != nil {
		return o, false, cutOff(err)
	}
	if ID(o.Kind, o.Body) != o.ID {
		return o, false, fmt.Errorf("%w: object %s has other bytes", pando.ErrInvalid, o.ID)
	}
	return o, true, nil
}

// Store writes the objects of the bundle, then its refs in one durable step. Before the last step
// nothing points at the objects, so the caller keeps a trim away meanwhile.
func (b *Bundle) Store(ctx context.Context, o pando.Objects) error {
	var batch []pando.Object
	size := 0
	for {
		one, more, err := b.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		batch, size = append(batch, one), size+len(one.Body)
		if size >= writeBytes {
			if err := o.Update(ctx, pando.ObjectsUpdate{Objects: batch}); err != nil {
				return err
			}
			batch, size = nil, 0
		}
	}
	u := pando.ObjectsUpdate{Objects: batch}
	late := false
	if b.Instance != "" {
		name := refOf(b.Service, branchRef, string(b.Instance))
		now, err := o.Ref(name)
		if err != nil && !errors.Is(err, pando.ErrNotFound) {
			return err
		}
		u.If = map[string]pando.ObjectID{name: now} // another bundle may come first
		if late, err = b.late(o, now); err != nil {
			return err
		}
	}
	var err error
	if u.Refs, err = b.refs(o, batch, late); err != nil {
		return err
	}
	return o.Update(ctx, u)
}

// refs returns the refs that the bundle sets and drops. It leaves out those of a branch that is
// further here: an older bundle was late.
func (b *Bundle) refs(
	o pando.Objects, batch []pando.Object, late bool,
) (map[string]pando.ObjectID, error) {
	refs := map[string]pando.ObjectID{}
	has := func(id pando.ObjectID) (bool, error) {
		for _, one := range batch {
			if one.ID == id {
				return true, nil
			}
		}
		all, err := here(o, id)
		return len(all) > 0, err
	}
	if b.Instance != "" && !late {
		all, err := RefsOf(o, b.Service, b.Instance)
		if err != nil {
			return nil, err
		}
		for name := range all {
			refs[refsOf(b.Service)+name] = pando.ObjectID{}
		}
	}
	for name, id := range b.Refs {
		if there, err := has(id); err != nil || !there {
			return nil, errors.Join(err, fmt.Errorf("%w: a bundle sets %s to %s and lacks it",
				pando.ErrInvalid, name, id))
		}
		if i, isNote := strings.CutPrefix(name, mergedRef+"/"); isNote {
			if news, err := isNews(o, b.Service, pando.InstanceID(i), id); err != nil || !news {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		if !late || !b.own(name) {
			refs[refsOf(b.Service)+name] = id
		}
	}
	return refs, b.edges(o, batch, has, refs)
}

// edges adds an edge for each commit without its parents, here and in the bundle. It drops those
// that the bundle continues.
func (b *Bundle) edges(o pando.Objects, batch []pando.Object,
	has func(pando.ObjectID) (bool, error), refs map[string]pando.ObjectID) error {
	for _, id := range b.Open {
		refs[refOf(b.Service, edgeRef, id.String())] = pando.ObjectID{}
	}
	for _, id := range b.Edge {
		c, err := bundled(o, batch, id)
		if err != nil {
			return err
		}
		for _, p := range c.parents {
			there, err := has(p)
			if err != nil {
				return err
			}
			if !there {
				refs[refOf(b.Service, edgeRef, id.String())] = id
			}
		}
	}
	return nil
}

func bundled(o pando.Objects, batch []pando.Object, id pando.ObjectID) (commit, error) {
	for _, one := range batch {
		if one.ID == id {
			return decodeCommit(one.Body)
		}
	}
	return readCommit(o, id)
}

// late reports whether the branch of the bundle is further on this host, where it is at now.
func (b *Bundle) late(o pando.Objects, now pando.ObjectID) (bool, error) {
	next := b.Refs[branchRef+"/"+string(b.Instance)]
	if now.IsZero() || now == next {
		return false, nil
	}
	older, err := newWork(o, b.Service).isIn(next, now)
	if errors.Is(err, pando.ErrNotFound) {
		return false, nil // the commit is new here
	}
	return older, err
}

// own reports whether a ref belongs to the branch of the bundle's instance.
func (b *Bundle) own(name string) bool { return ofInstance(name, b.Instance) }

// branchRefs are the kinds of refs that belong to one branch and are copied with it.
var branchRefs = []string{branchRef, baseRef, sinceRef, offerRef}

func ofInstance(name string, i pando.InstanceID) bool {
	kind, rest, _ := strings.Cut(name, "/")
	whose, _, _ := strings.Cut(rest, "/")
	return slices.Contains(branchRefs, kind) && whose == string(i)
}

// Ours reports whether the refs of the bundle are those of its branch, and perhaps main. A host
// that keeps a copy may also send the notes of SetMerged.
func (b *Bundle) Ours(keeps bool) bool {
	for name := range b.Refs {
		note := keeps && b.Instance == "" && strings.HasPrefix(name, mergedRef+"/")
		if name != MainRef && !b.own(name) && !note {
			return false
		}
	}
	return true
}

// Notes returns the notes of SetMerged, by their names below the service.
func Notes(o pando.Objects, s pando.ServiceKey) (map[string]pando.ObjectID, error) {
	refs, err := o.Refs(refOf(s, mergedRef, ""))
	out := make(map[string]pando.ObjectID, len(refs))
	for name, id := range refs {
		out[strings.TrimPrefix(name, refsOf(s))] = id
	}
	return out, err
}

// MainRef is the ref of main below the service, as a host last received it.
const MainRef = mainRef + "/" + mainName

// RefsOf returns the refs of a branch that are copied to other hosts, by their names below the
// service.
func RefsOf(
	o pando.Objects, s pando.ServiceKey, i pando.InstanceID,
) (map[string]pando.ObjectID, error) {
	out := map[string]pando.ObjectID{}
	for _, kind := range []string{branchRef, baseRef, sinceRef} {
		id, err := o.Ref(refOf(s, kind, string(i)))
		switch {
		case err == nil:
			out[kind+"/"+string(i)] = id
		case !errors.Is(err, pando.ErrNotFound):
			return nil, err
		}
	}
	offers, err := o.Refs(refOf(s, offerRef, string(i)+"/"))
	if err != nil {
		return nil, err
	}
	for name, id := range offers {
		out[strings.TrimPrefix(name, refsOf(s))] = id
	}
	return out, nil
}

// hasMax bounds the commits that a host names in a receipt.
const hasMax = 4096

// Has returns the commits of this host that are whole: main, and those of its refs.
func Has(o pando.Objects, s pando.ServiceKey, main pando.ObjectID) (out Held, err error) {
	refs, err := o.Refs(refsOf(s))
	if err != nil {
		return out, err
	}
	if out.Commits, err = here(o, main); err != nil {
		return out, err
	}
	seen := map[pando.ObjectID]bool{main: true}
	for name, id := range refs {
		kind, _, _ := strings.Cut(strings.TrimPrefix(name, refsOf(s)), "/")
		switch {
		case kind == joinedRef:
		case kind == edgeRef:
			out.Edge = append(out.Edge, id)
		case !seen[id] && len(out.Commits) < hasMax:
			seen[id], out.Commits = true, append(out.Commits, id)
		}
	}
	return out, nil
}

// Merged returns the newest commit of a branch that another host has merged into main, as noted by
// SetMerged, or the zero id.
func Merged(
	o pando.Objects, s pando.ServiceKey, i pando.InstanceID,
) (pando.ObjectID, error) {
	id, err := o.Ref(refOf(s, mergedRef, string(i)))
	if errors.Is(err, pando.ErrNotFound) {
		err = nil
	}
	return id, err
}

// SetMerged notes that another host has merged a branch up to a commit of this host. It reports
// whether that is news. The note of a host may be older than that of another one.
func SetMerged(ctx context.Context, o pando.Objects, s pando.ServiceKey, i pando.InstanceID,
	upTo pando.ObjectID) (bool, error) {
	news, err := isNews(o, s, i, upTo)
	if err != nil || !news {
		return false, err
	}
	return true, o.Update(ctx, pando.ObjectsUpdate{
		Refs: map[string]pando.ObjectID{refOf(s, mergedRef, string(i)): upTo}})
}

// isNews reports whether a commit of a branch is later than the note of this host.
func isNews(
	o pando.Objects, s pando.ServiceKey, i pando.InstanceID, upTo pando.ObjectID,
) (bool, error) {
	known, err := Merged(o, s, i)
	if err != nil || known == upTo {
		return false, err
	}
	older, err := newWork(o, s).isIn(upTo, known)
	if errors.Is(err, pando.ErrNotFound) {
		return true, nil // the commit is new here
	}
	return !older, err
}

// Release drops the refs of a branch that other hosts keep.
func Release(
	ctx context.Context, o pando.Objects, s pando.ServiceKey, i pando.InstanceID,
) error {
	refs, err := RefsOf(o, s, i)
	if err != nil {
		return err
	}
	u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{}}
	for name := range refs {
		u.Refs[refsOf(s)+name] = pando.ObjectID{}
	}
	return o.Update(ctx, u)
}

// Enroll drops every branch and note that this host has from before it began to keep a copy, except
// those of its own instances. Main may have merged them since, and its history may not show it any
// more. A second call with one epoch does nothing.
func Enroll(ctx context.Context, o pando.Objects, s pando.ServiceKey, epoch int64,
	own func(pando.InstanceID) bool) error {
	var mark pando.ObjectID
	binary.BigEndian.PutUint64(mark[:], uint64(epoch))
	name := refOf(s, joinedRef, "at")
	switch now, err := o.Ref(name); {
	case err == nil && now == mark:
		return nil
	case err != nil && !errors.Is(err, pando.ErrNotFound):
		return err
	}
	refs, err := o.Refs(refsOf(s))
	if err != nil {
		return err
	}
	u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{name: mark}}
	for ref := range refs {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(ref, refsOf(s)), "/")
		whose, _, _ := strings.Cut(rest, "/")
		if (kind == mergedRef || slices.Contains(branchRefs, kind)) && !own(pando.InstanceID(whose)) {
			u.Refs[ref] = pando.ObjectID{}
		}
	}
	return o.Update(ctx, u)
}
