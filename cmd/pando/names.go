package main

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"

	"pando.run/pando"
)

// names makes names that nobody has used, from the kernel's random numbers.
type names struct{}

// The alphabet leaves out what is easily misread, and keeps the order of bytes.
var alphabet = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// Instance implements pando.IDs: the service's name and five letters.
func (names) Instance(s pando.ServiceName) pando.InstanceID {
	return pando.InstanceID(string(s) + "-" + strings.ToLower(rand.Text()[:5]))
}

// Sequential implements pando.IDs: the nanosecond, then randomness.
func (names) Sequential(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixNano()))
	_, _ = rand.Read(b[8:]) // never fails
	return alphabet.EncodeToString(b[:])
}
