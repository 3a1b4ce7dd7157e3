// Package backup writes and reads the file of `pando backup`: a tar archive, encrypted by a
// passphrase if there is one (age, filippo.io/age).
//
// Its last entry is a manifest with the hash of every other entry, so that a file that was cut off
// or changed is refused as a whole. It never decides what a cluster needs.
package backup

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"pando.run/pando"
)

// Manifest describes a backup.
type Manifest struct {
	Cluster    string              `json:"cluster"`
	Generation int                 `json:"generation"`
	Revision   pando.StoreRevision `json:"revision"` // of the store
	Made       time.Time           `json:"made"`
	Host       pando.HostName      `json:"host"` // of the server
	Version    string              `json:"version"`
	Layout     int                 `json:"layout"`            // of the records
	Missing    []pando.HostName    `json:"missing,omitempty"` // hosts without their states in it
	Parts      map[string]string   `json:"parts"`             // entry: SHA-256
}

// Entries of the archive. Names of other entries are refused.
const (
	StoreFile  = "store.db"
	trustDir   = "trust/"
	statesDir  = "states/"
	volumesDir = "volumes/"
	manifest   = "manifest.json"
)

// TrustFile returns the entry of a file of the authority.
func TrustFile(name string) string { return trustDir + name }

// StatesFile returns the entry of the states of a host.
func StatesFile(h pando.HostName) string { return statesDir + string(h) + ".db" }

// VolumesFile returns the entry of the volumes of a host: a tar archive.
func VolumesFile(h pando.HostName) string { return volumesDir + string(h) + ".tar" }

// Writer writes one backup.
type Writer struct {
	path  string
	file  *os.File       // beside path
	seal  io.WriteCloser // nil: not encrypted
	tar   *tar.Writer
	parts map[string]string
}

// Create begins a backup at path. The file appears there only after Close.
func Create(path, passphrase string) (*Writer, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".pando-backup-")
	if err != nil {
		return nil, fmt.Errorf("create the backup: %w", err)
	}
	w := &Writer{path: path, file: f, parts: map[string]string{}}
	var out io.Writer = f
	if passphrase != "" {
		to, err := age.NewScryptRecipient(passphrase)
		if err == nil {
			w.seal, err = age.Encrypt(f, to)
		}
		if err != nil {
			w.Abort()
			return nil, fmt.Errorf("encrypt the backup: %w", err)
		}
		out = w.seal
	}
	w.tar = tar.NewWriter(out)
	return w, nil
}

// Wrote reports whether a file is a backup. An encrypted one opens with the passphrase.
func Wrote(file, passphrase string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var from io.Reader = in
	if head, _ := in.Peek(len(sealed)); string(head) == sealed {
		if from, err = unseal(in, passphrase); err != nil {
			return false
		}
	}
	h, err := tar.NewReader(from).Next()
	return err == nil && h.Name == StoreFile
}

// Abort gives the backup up and removes its file.
func (w *Writer) Abort() {
	_ = w.file.Close()
	_ = os.Remove(w.file.Name())
}

// Add writes an entry. write produces its contents, which wait in a file beside the backup, because
// an archive needs the size first.
func (w *Writer) Add(name string, write func(io.Writer) error) (err error) {
	spool, err := os.CreateTemp(filepath.Dir(w.path), ".pando-backup-")
	if err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, spool.Close(), os.Remove(spool.Name())) }()
	hash := sha256.New()
	buffered := bufio.NewWriter(io.MultiWriter(spool, hash))
	if err = write(buffered); err == nil { // else Flush repeats the error
		err = buffered.Flush()
	}
	if err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	size, err := spool.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = w.entry(name, size, spool)
	}
	if err != nil {
		return fmt.Errorf("back up %s: %w", name, err)
	}
	w.parts[name] = hex.EncodeToString(hash.Sum(nil))
	return nil
}

func (w *Writer) entry(name string, size int64, from io.Reader) error {
	h := &tar.Header{Name: name, Mode: 0o600, Size: size, Typeflag: tar.TypeReg}
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w.tar, from)
	return err
}

// Close writes the manifest, and puts the file in its place once it is on the disk.
func (w *Writer) Close(m Manifest) error {
	m.Parts = w.parts
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = w.entry(manifest, int64(len(text)), strings.NewReader(string(text)))
	}
	if err == nil {
		err = w.tar.Close()
	}
	if err == nil && w.seal != nil {
		err = w.seal.Close()
	}
	if err == nil {
		err = w.file.Sync()
	}
	if err != nil {
		w.Abort()
		return fmt.Errorf("write the backup: %w", err)
	}
	if err := errors.Join(w.file.Close(), os.Rename(w.file.Name(), w.path)); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// sealed begins every file that age encrypted.
const sealed = "age-encryption.org/"

// Extract unpacks a backup into an empty folder and checks it. It returns ErrForbidden for a wrong
// or missing passphrase, and ErrInvalid for a damaged file.
func Extract(file, passphrase, dir string) (m Manifest, err error) {
	f, err := os.Open(file)
	if err != nil {
		return m, fmt.Errorf("open the backup: %w", err)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	var from io.Reader = in
	head, err := in.Peek(len(sealed))
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return m, fmt.Errorf("%w: %s is empty, and no backup; `pando backup FILE` writes one",
			pando.ErrInvalid, file)
	case err != nil && !errors.Is(err, io.EOF):
		return m, fmt.Errorf("open the backup: %w", err)
	case string(head) == sealed:
		if from, err = unseal(in, passphrase); err != nil {
			return m, err
		}
	}
	parts, err := unpack(tar.NewReader(from), dir)
	if err != nil {
		return m, fmt.Errorf("%w: the backup %s is damaged: %w", pando.ErrInvalid, file, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, manifest))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("%w: the backup %s is damaged or cut off: its end, the %s, is missing",
			pando.ErrInvalid, file, manifest)
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, fmt.Errorf("%w: the backup %s is damaged or cut off: %w", pando.ErrInvalid, file, err)
	}
	delete(parts, manifest)
	for name, sum := range m.Parts {
		if parts[name] != sum {
			return m, fmt.Errorf("%w: the backup %s is damaged: %s is not what was written",
				pando.ErrInvalid, file, name)
		}
	}
	if len(parts) != len(m.Parts) || m.Parts[StoreFile] == "" {
		return m, fmt.Errorf("%w: the backup %s has entries that its manifest lacks, or no store",
			pando.ErrInvalid, file)
	}
	return m, nil
}

func unseal(in io.Reader, passphrase string) (io.Reader, error) {
	if passphrase == "" {
		return nil, fmt.Errorf("%w: the backup is encrypted; give its passphrase with "+
			"--passphrase-file or PANDO_PASSPHRASE", pando.ErrForbidden)
	}
	by, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pando.ErrForbidden, err)
	}
	by.SetMaxWorkFactor(22)
	out, err := age.Decrypt(in, by)
	if err != nil {
		return nil, fmt.Errorf("%w: the passphrase does not open the backup: %w", pando.ErrForbidden, err)
	}
	return out, nil
}

// unpack writes the entries and returns their hashes.
func unpack(from *tar.Reader, dir string) (map[string]string, error) {
	parts := map[string]string{}
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		if !expected(h) || parts[h.Name] != "" {
			return nil, fmt.Errorf("an entry %q", h.Name)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return nil, err
		}
		hash := sha256.New()
		f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.MultiWriter(f, hash), from)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		parts[h.Name] = hex.EncodeToString(hash.Sum(nil))
	}
}

// expected reports whether an entry is one that a backup has. A name never leaves the folder.
func expected(h *tar.Header) bool {
	dir, name := path.Split(h.Name)
	plain := h.Typeflag == tar.TypeReg && name != "" && name != "." && name != ".." &&
		!strings.ContainsAny(name, "\\\x00")
	switch dir {
	case "":
		return plain && (name == StoreFile || name == manifest)
	case trustDir, statesDir, volumesDir:
		return plain
	}
	return false
}
