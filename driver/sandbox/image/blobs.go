package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// source has blobs: a registry, another host, a folder.
type source interface {
	// String names the source in an error.
	String() string
	// open returns the bytes of a blob or a manifest from an offset on.
	open(ctx context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, error)
}

// errFinal marks an error that another attempt at the same source does not mend.
var errFinal = errors.New("final")

// final returns an error that ends the attempts at a source. Its text is that of err.
func final(err error) error { return finalError{err} }

type finalError struct{ error }

func (e finalError) Unwrap() error        { return e.error }
func (e finalError) Is(target error) bool { return target == errFinal }

// Attempts at a blob. An attempt that brought bytes does not count against vainMax.
const (
	triesMax = 40
	vainMax  = 5
	againMin = 200 * time.Millisecond
	againMax = 5 * time.Second
	// A source that brings fewer than stallBytes in stallsMax counts as dead.
	stallsMax  = 30 * time.Second
	stallBytes = 64 << 10
)

// attempt asks the sources in turn until get succeeds. It rests between rounds, and gives up once
// no source can answer, or after vainMax rounds without progress.
func (s *vault) attempt(
	ctx context.Context, from []source, get func(source) (progress bool, err error),
) error {
	dead := map[int]bool{}
	last := map[int]error{}
	vain, again := 0, againMin
	for tries := 0; tries < triesMax && vain < vainMax && len(dead) < len(from); tries++ {
		progress := false
		for n, src := range from {
			if dead[n] {
				continue
			}
			told := pando.Waiting(ctx, s.Clock, src.String())
			moved, err := get(src)
			told()
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			progress = progress || moved
			last[n], dead[n] = fmt.Errorf("%s: %w", src, err), errors.Is(err, errFinal)
			if !dead[n] {
				delete(dead, n)
			}
		}
		vain, again = vain+1, min(2*again, againMax)
		if progress {
			vain, again = 0, againMin
		}
		if len(dead) < len(from) && vain < vainMax {
			if err := pando.Sleep(ctx, s.Clock, again); err != nil {
				return err
			}
		}
	}
	var errs []error
	for n := range from {
		errs = append(errs, last[n])
	}
	if errs == nil {
		errs = []error{fmt.Errorf("%w: no host and no registry has it", pando.ErrNotFound)}
	}
	return errors.Join(errs...)
}

// small returns a manifest or a configuration, from this store or from the sources.
func (s *vault) small(ctx context.Context, d v1.Descriptor, from []source) ([]byte, error) {
	if _, err := digest(d.Digest.String()); err != nil {
		return nil, err
	}
	if originOf(s.sent, from).mayUse(d.Digest) {
		if b, err := readBounded(s.blob(d.Digest), smallMax); err == nil && hash(b) == d.Digest {
			return b, nil
		}
	}
	var b []byte
	err := s.attempt(ctx, from, func(src source) (bool, error) {
		r, err := s.opened(ctx, func(ctx context.Context) (io.ReadCloser, error) {
			return src.open(ctx, d, 0)
		})
		if err != nil {
			return false, err
		}
		defer r.Close()
		b, err = io.ReadAll(io.LimitReader(r, smallMax+1))
		switch {
		case err != nil:
			return false, err
		case len(b) > smallMax:
			return false, final(fmt.Errorf("%w: %s is larger than %d bytes", pando.ErrTooLarge, d.Digest,
				smallMax))
		case hash(b) != d.Digest:
			return false, final(wrongDigest(d.Digest, hash(b)))
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return b, errors.Join(writeFile(s.blob(d.Digest), b), originOf(s.sent, from).came(d.Digest))
}

func hash(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func wrongDigest(want, got v1.Hash) error {
	return fmt.Errorf("%w: wrong digest: want %s, and the bytes have %s", pando.ErrInvalid, want, got)
}

// has reports whether a blob is here. It got its name after it was checked.
func (s *vault) has(d v1.Descriptor) bool {
	st, err := os.Stat(s.blob(d.Digest))
	return err == nil && st.Mode().IsRegular() && st.Size() == d.Size
}

// fetch brings a blob into the store. A broken transfer continues where it ended, from any source.
func (s *vault) fetch(ctx context.Context, d v1.Descriptor, from []source) error {
	if _, err := digest(d.Digest.String()); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > blobBytesMax {
		return fmt.Errorf("%w: blob %s of %d bytes: at most %d", pando.ErrTooLarge, d.Digest, d.Size,
			int64(blobBytesMax))
	}
	if s.has(d) && originOf(s.sent, from).mayUse(d.Digest) {
		return nil
	}
	part := s.part(d.Digest, from)
	f, err := s.lockFile(ctx, part, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer f.Close()
	if s.has(d) && originOf(s.sent, from).mayUse(d.Digest) {
		return nil
	}
	if err := s.room(d.Size); err != nil {
		return err
	}
	err = s.attempt(ctx, from, func(src source) (bool, error) { return s.resume(ctx, f, d, src) })
	if err != nil {
		return fmt.Errorf("get blob %s: %w", d.Digest, noSpace(err))
	}
	if err := errors.Join(f.Sync(), os.Rename(part, s.blob(d.Digest))); err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, noSpace(err))
	}
	return originOf(s.sent, from).came(d.Digest)
}

// part returns the file of a blob on its way. Each registry has one of its own: a slow registry of one
// tenant must not hold up another tenant, who wants the same blob from elsewhere.
func (s *vault) part(h v1.Hash, from []source) string {
	registries := ""
	for _, src := range from {
		if r, ok := src.(*registry); ok {
			registries += r.host() + " "
		}
	}
	return fmt.Sprintf("%s.%s.part", s.blob(h), hash([]byte(registries)).Hex[:16])
}

// resume adds the rest of a blob to a file, and checks the whole. It reports whether bytes came.
func (s *vault) resume(
	ctx context.Context, f *os.File, d v1.Descriptor, src source,
) (progress bool, err error) {
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, final(err)
	}
	if at > d.Size {
		at = 0
		if err := f.Truncate(0); err != nil {
			return false, final(err)
		}
	}
	if at < d.Size {
		n, err := s.copyRest(ctx, f, d, src, at)
		if errors.Is(err, errRange) { // from the beginning, then
			return false, errors.Join(err, f.Truncate(0))
		}
		if err == nil && at+n < d.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return n > 0, fmt.Errorf("the transfer ended after %d of %d bytes: %w", at+n, d.Size, err)
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, d.Size)); err != nil {
		return true, final(err)
	}
	got := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	if got == d.Digest {
		return true, nil
	}
	// The first bytes may be another source's: a source that gave all of them is not asked again.
	wrong := wrongDigest(d.Digest, got)
	if at == 0 {
		wrong = final(wrong)
	}
	return false, errors.Join(wrong, f.Truncate(0))
}

// copyRest copies the bytes from an offset on.
func (s *vault) copyRest(
	ctx context.Context, f *os.File, d v1.Descriptor, src source, at int64,
) (int64, error) {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return 0, final(err)
	}
	r, err := s.opened(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		return src.open(ctx, d, at)
	})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(f, io.LimitReader(r, d.Size-at))
}

// opened returns the body that open gives. The opening and each read end with an error once the
// source stalls.
func (s *vault) opened(
	ctx context.Context, open func(context.Context) (io.ReadCloser, error),
) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &body{ctx: ctx, cancel: cancel}
	go s.cancelStalled(ctx, cancel, &b.moved)
	in, err := open(ctx)
	if err != nil {
		err = b.cause(err)
		cancel(nil)
		return nil, err
	}
	b.in = in
	return b, nil
}

// body counts the bytes that arrive from a source.
type body struct {
	in     io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	moved  atomic.Int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	b.moved.Add(int64(n))
	return n, b.cause(err)
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.cancel(nil)
	return b.in.Close()
}

// cause returns the reason why the source was given up, if it was, in place of an error.
func (b *body) cause(err error) error {
	if why := context.Cause(b.ctx); err != nil && err != io.EOF && why != nil {
		return why
	}
	return err
}

func (s *vault) cancelStalled(
	ctx context.Context, cancel context.CancelCauseFunc, moved *atomic.Int64,
) {
	for before := int64(-stallBytes); moved.Load()-before >= stallBytes; {
		before = moved.Load()
		if pando.Sleep(ctx, s.Clock, stallsMax) != nil {
			return
		}
	}
	cancel(fmt.Errorf("%w: fewer than %d KiB came within %s", pando.ErrUnreachable, stallBytes>>10,
		stallsMax))
}

// room returns an error if the disk has too little space for more bytes.
func (s *vault) room(need int64) error { return room(s.Dir, need, s.FreeMin) }

// inodesMin is the number of inodes that stay free, on a disk that has many.
const inodesMin = 1 << 14

func room(dir string, need, freeMin int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("measure the free space of %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-need < freeMin {
		return fmt.Errorf("%w: no space for %d MiB more of an image: the disk has %d MiB free, and %d stay "+
			"free; `pando image rm` removes an image", pando.ErrStoreFull, need>>20+1, free>>20, freeMin>>20)
	}
	if freeMin > 0 && st.Files > 0 && st.Ffree < min(inodesMin, st.Files/20) {
		return fmt.Errorf("%w: no inodes for more files of an image: the disk has %d of %d free; `pando "+
			"image rm` removes an image", pando.ErrStoreFull, st.Ffree, st.Files)
	}
	return nil
}

func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: the disk is full; `pando image rm` removes an image: %w",
			pando.ErrStoreFull, err)
	}
	return err
}

// add stores bytes that have been made here.
func (s *vault) add(b []byte) (v1.Hash, error) {
	h := hash(b)
	if at, err := readBounded(s.blob(h), smallMax); err == nil && bytes.Equal(at, b) {
		return h, nil
	}
	return h, writeFile(s.blob(h), b)
}
