package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"pando.run/pando"
)

// Bounds of the files that are decoded. The pages of the memory are not.
const (
	entryBytesMax = 16 << 20
	entryHeadMax  = 4096    // of a description before a content
	entriesMax    = 1 << 16 // of one file
)

// commonMagic begins every file of images but the inventory.
const commonMagic = 0x54564319

// message is one decoded message of Protocol Buffers: the values of each field in their order. A
// number is its varint, a text its bytes.
type message map[protowire.Number][]value

type value struct {
	number uint64
	bytes  []byte
	wire   protowire.Type
}

var errMalformed = fmt.Errorf("%w: it is no file of CRIU", pando.ErrInvalid)

// decode reads a message. It takes every field, known or not.
func decode(b []byte) (message, error) {
	m := message{}
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errMalformed
		}
		b = b[n:]
		v := value{wire: wire}
		switch wire {
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(field, wire, b)
		}
		if n < 0 {
			return nil, errMalformed
		}
		m[field] = append(m[field], v)
		b = b[n:]
	}
	return m, nil
}

// one returns the last value of a field, which is the one that counts, and whether it is there.
func (m message) one(field protowire.Number) (value, bool) {
	all := m[field]
	if len(all) == 0 {
		return value{}, false
	}
	return all[len(all)-1], true
}

// long returns a field of one number. CRIU would merge a repeated one and skip one of another type:
// both are malformed.
func (m message) long(field protowire.Number) (n uint64, there bool, err error) {
	v, ok := m.one(field)
	if ok && (len(m[field]) != 1 || v.wire != protowire.VarintType) {
		return 0, true, errMalformed
	}
	return v.number, ok, nil
}

// number is long for a field of 32 bits. CRIU would cut a larger one.
func (m message) number(field protowire.Number) (n uint32, there bool, err error) {
	v, ok, err := m.long(field)
	if err == nil && v > math.MaxUint32 {
		err = errMalformed
	}
	return uint32(v), ok, err
}

// text returns a field of one text.
func (m message) text(field protowire.Number) (text []byte, there bool, err error) {
	v, ok := m.one(field)
	if ok && (len(m[field]) != 1 || v.wire != protowire.BytesType) {
		return nil, true, errMalformed
	}
	return v.bytes, ok, nil
}

// sub returns a field of one message.
func (m message) sub(field protowire.Number) (message, bool, error) {
	b, ok, err := m.text(field)
	if err != nil || !ok {
		return nil, ok, err
	}
	out, err := decode(b)
	return out, true, err
}

// numbers returns the values of a repeated number, packed or not.
func (m message) numbers(field protowire.Number) (out []uint64, err error) {
	for _, v := range m[field] {
		switch v.wire {
		case protowire.VarintType:
			out = append(out, v.number)
		case protowire.BytesType:
			for b := v.bytes; len(b) > 0; {
				n, size := protowire.ConsumeVarint(b)
				if size < 0 {
					return nil, errMalformed
				}
				out, b = append(out, n), b[size:]
			}
		default:
			return nil, errMalformed
		}
	}
	return out, nil
}

// entries reads a file of images: its magic numbers, and messages with their sizes before them.
func entries(path string) ([]message, error) {
	b, err := readBounded(path, entryBytesMax)
	if err != nil {
		return nil, err
	}
	if len(b) < 4 {
		return nil, errMalformed
	}
	head := 4
	if binary.LittleEndian.Uint32(b) == commonMagic {
		head = 8
	}
	if len(b) < head {
		return nil, errMalformed
	}
	var out []message
	for b = b[head:]; len(b) > 0; {
		if len(b) < 4 || len(out) == entriesMax {
			return nil, errMalformed
		}
		size := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(size) > uint64(len(b)) {
			return nil, errMalformed
		}
		m, err := decode(b[:size])
		if err != nil {
			return nil, err
		}
		out, b = append(out, m), b[size:]
	}
	return out, nil
}

// firstEntry reads the description at the beginning of a file whose rest is a content.
func firstEntry(path string) (message, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 12+entryHeadMax)
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if n < 12 || binary.LittleEndian.Uint32(b) != commonMagic {
		return nil, errMalformed
	}
	size := binary.LittleEndian.Uint32(b[8:])
	if uint64(size) > uint64(n-12) {
		return nil, errMalformed
	}
	return decode(b[12 : 12+size])
}

// only reads a file of one message.
func only(path string) (message, error) {
	all, err := entries(path)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%w: %d entries in it, want one", errMalformed, len(all))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return all[0], nil
}

func readBounded(path string, most int64) ([]byte, error) {
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, errMalformed
	case st.Size() > most:
		return nil, fmt.Errorf("%w: it has more than %d bytes", pando.ErrTooLarge, most)
	}
	return os.ReadFile(path)
}
