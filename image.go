package pando

import (
	"fmt"
	"strings"
)

// Prefixes of references to files of the host that deploys.
const (
	ImageFolderPrefix  = "oci:"
	ImageArchivePrefix = "docker-archive:"
)

// OfFiles reports whether the image comes from the files of a host, as a bundle and a snapshot do.
func (i Image) OfFiles() bool {
	return strings.HasPrefix(i.Reference, ImageFolderPrefix) ||
		strings.HasPrefix(i.Reference, ImageArchivePrefix) ||
		strings.HasPrefix(i.Reference, BundlePrefix) ||
		strings.HasPrefix(i.Reference, SnapshotPrefix)
}

// SnapshotPrefix begins the reference of a snapshot in a store of images. No registry has such a
// name.
const SnapshotPrefix = "snapshot of "

// LeftOut returns the warning about files that a bundle leaves out.
func LeftOut(files []string) string {
	return fmt.Sprintf("the bundle is without %s: not everyone may read it, or it is no file; a "+
		"private file belongs into `secrets`", strings.Join(files, ", "))
}

// ImageQuestion asks control whether a host may have an image out of the store of another host.
type ImageQuestion struct {
	Host   HostName // that wants it
	Digest string   // of the image
	// Snapshot is the description of the image if it is the memory of a program. Nil: it is none.
	Snapshot *SealedSnapshot
}
