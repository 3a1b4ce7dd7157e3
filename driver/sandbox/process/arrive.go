package process

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// copyBytes is the size of the pieces in which files of a program travel.
const copyBytes = 1 << 20

// writeFrozen sends the description of the program first, so that the other host makes its sandbox
// ready before the program stops.
func writeFrozen(out *tar.Writer, s stored) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: frozenFile, Size: int64(len(b)), Mode: 0o600}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	return out.Flush()
}

func sendFile(out *tar.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	h := &tar.Header{Name: filepath.Base(path), Size: st.Size(), Mode: 0o600}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{f}, make([]byte, copyBytes))
	return err
}

// arriving is a program on its way to this host.
type arriving struct {
	in   *tar.Reader
	move pando.MoveMark
	room room // for its files
}

// newArriving reads the description of the program.
func newArriving(r io.Reader, m *pando.MoveMark) (*arriving, *wire.Frozen, error) {
	if m == nil {
		return nil, nil, fmt.Errorf("%w: the program belongs to no move", pando.ErrInvalid)
	}
	a := &arriving{in: tar.NewReader(r), move: *m}
	var s stored
	h, err := a.in.Next()
	if err == nil && h.Name != frozenFile {
		err = fmt.Errorf("%w: it begins with %q", pando.ErrInvalid, h.Name)
	}
	if err == nil {
		err = json.NewDecoder(a.in).Decode(&s)
	}
	if err == nil {
		err = s.runsHere()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("receive a program: %w", err)
	}
	return a, &s.Program, nil
}

// receive writes the rest of the program to a folder.
func (a *arriving) receive(dir string) (err error) {
	if a.room, err = roomIn(dir); err != nil {
		return err
	}
	return a.receiveIn(dir)
}

// receiveIn is receive within the room of a.
func (a *arriving) receiveIn(dir string) error {
	b := make([]byte, copyBytes)
	for {
		h, err := a.in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && h.Name != filepath.Base(h.Name) {
			err = fmt.Errorf("%w: the name %q", pando.ErrInvalid, h.Name)
		}
		if err == nil {
			err = a.room.take(h.Size)
		}
		if err == nil {
			err = a.receiveFile(dir, h.Name, b)
		}
		if err != nil {
			return fmt.Errorf("receive a program: %w", err)
		}
	}
}

func (a *arriving) receiveFile(dir, name string, b []byte) error {
	path, in := filepath.Join(dir, name), a.in
	if of, ok := strings.CutSuffix(path, deltaSuffix); ok {
		return receiveDelta(of, filepath.Join(dir, baseFile), in, &a.room)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{in}, b)
	return errors.Join(err, f.Close())
}

// land starts the program in a sandbox that is ready for it. It stays stopped and sealed.
func (a *arriving) land(ctx context.Context, b *sandbox, f wire.Frozen) error {
	dir, err := movingDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.slot.Move = &a.move
	if err := b.seal(); err != nil {
		return err
	}
	if err := a.receive(dir); err != nil {
		return err
	}
	return thawer{b.d}.thawIn(ctx, b, f, dir, true)
}
