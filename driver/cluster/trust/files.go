package trust

import (
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// PeerFiles are the files by which etcd calls the other servers.
type PeerFiles struct {
	Certificate string // with its key
	Authority   string
}

// WriteFiles writes the identity to files in dir, readable only by their owner. Write them again
// after each renewal.
func (i *Identity) WriteFiles(dir string) (PeerFiles, error) {
	f := PeerFiles{filepath.Join(dir, "server.pem"), filepath.Join(dir, "authority.crt")}
	text, err := pair(i.own.Load().Certificate[0], i.key)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = replace(f.Certificate, text)
	}
	if err == nil {
		err = replace(f.Authority, pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: i.authority.Load().Raw}))
	}
	if err != nil {
		return f, fmt.Errorf("write the server's certificate: %w", err)
	}
	return f, nil
}
