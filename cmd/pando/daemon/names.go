package daemon

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"

	"pando.run/pando"
)

// names makes random names.
type names struct{}

// The alphabet leaves out letters that are easily misread. Its order is the order of bytes.
var alphabet = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// Instance implements pando.IDs. It returns the service's name and five random letters.
func (names) Instance(s pando.ServiceName) pando.InstanceID {
	return pando.InstanceID(string(s) + "-" + strings.ToLower(rand.Text()[:5]))
}

// Sequential implements pando.IDs. It returns the time in nanoseconds followed by random bytes.
func (names) Sequential(now time.Time) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixNano()))
	_, _ = rand.Read(b[8:]) // never fails
	return alphabet.EncodeToString(b[:])
}
