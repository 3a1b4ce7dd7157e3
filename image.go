package pando

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Image names the files of a service that has an image. A service without one runs programs of its
// host.
type Image struct {
	// Reference is the image in the words of the spec: NAME[:TAG][@DIGEST], oci:FOLDER[:TAG] or
	// docker-archive:FILE.
	Reference string `json:"reference"`
	// Digest is sha256:…, which the reference named at the deploy. So every host runs the same bytes.
	Digest string `json:"digest,omitempty"`
	// Host read the image from a folder or a file. Other hosts get it there. Empty: a registry has it.
	Host HostName `json:"host,omitempty"`
	// Gave lists the words of the spec that come from the configuration of the image.
	Gave []string `json:"gave,omitempty"`
}

// Origin tells which bytes an image is, and which words of the spec it gave, for a reason.
func (i Image) Origin() string {
	if i.Digest == "" {
		return ""
	}
	text := "; image " + i.Reference + " is " + i.Digest
	if len(i.Gave) > 0 {
		text += ", which gave " + strings.Join(i.Gave, ", ")
	}
	return text
}

// ImageConfig is the part of an image's configuration that a spec can have as well.
type ImageConfig struct {
	Architecture string            `json:"architecture"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Command      []string          `json:"command,omitempty"`
	Environment  map[string]string `json:"environment,omitempty"`
	WorkingDir   string            `json:"working_dir,omitempty"`
	User         string            `json:"user,omitempty"`
	StopSignal   string            `json:"stop_signal,omitempty"`
	Exposed      []string          `json:"exposed,omitempty"` // ports such as 80/tcp: a hint
	Health       Health            `json:"health,omitzero"`   // from its healthcheck: the live probe
}

// ImageStatus describes an image in the store of one host.
type ImageStatus struct {
	Host       HostName     `json:"host"`
	Digest     string       `json:"digest"`
	References []string     `json:"references"` // that named it on this host
	Config     ImageConfig  `json:"config"`
	Layers     []ImageLayer `json:"layers"`   // the lowest first
	Unpacked   bool         `json:"unpacked"` // an instance can start at once
	Used       time.Time    `json:"used"`     // last start, deploy or pull
	Services   []ServiceKey `json:"services"` // whose newest spec has it
}

// ImagesMatching returns the images that a word of an operator names: a reference, a digest, or the
// beginning of one.
func ImagesMatching(all []ImageStatus, word string) (out []ImageStatus) {
	const digitsMin = 6
	begin := strings.TrimPrefix(word, "sha256:")
	for _, i := range all {
		hex := strings.TrimPrefix(i.Digest, "sha256:")
		begins := len(begin) >= digitsMin && strings.HasPrefix(hex, begin)
		if begins || slices.Contains(i.References, word) {
			out = append(out, i)
		}
	}
	return out
}

// Bytes returns the packed size of the image.
func (s ImageStatus) Bytes() (n int64) {
	for _, l := range s.Layers {
		n += l.Bytes
	}
	return n
}

// ImageLayer is one layer of an image.
type ImageLayer struct {
	Digest string `json:"digest"` // of the packed bytes
	Files  string `json:"files"`  // digest of the unpacked archive
	Bytes  int64  `json:"bytes"`  // packed
}

// ImageRoot is the way into the files of an image on this host, and the user of a program in it.
type ImageRoot struct {
	Layers []string // folders below the folder of all layers, the highest first
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string // of the user; may be empty
}

// ImageOperators are the requests of operators about the images of the server's host.
type ImageOperators interface {
	// Images lists the images, the last used first.
	Images(ctx context.Context) ([]ImageStatus, error)
	// PullImage brings the image that a reference names now.
	PullImage(ctx context.Context, reference string) (ImageStatus, error)
	// RemoveImage deletes an image that no service and no instance uses.
	RemoveImage(ctx context.Context, digest string) error
}

// Images keeps the images of one host. driver/image implements it with folders of layers.
type Images interface {
	// Resolve finds the image that a reference names now, or the one of the digest if there is a
	// digest. It returns the image's configuration. It copies the layers of a folder or a file into
	// this host's store.
	Resolve(ctx context.Context, i Image) (Image, ImageConfig, error)
	// Pull brings the layers of a resolved image to this host: from one of the hosts if it has them,
	// else from the registry. It returns at once if they are here.
	Pull(ctx context.Context, i Image, from []Host) error
	// Root returns the files of an image, and the user that a spec names: a name, a uid or uid:gid.
	// An empty user is root. ErrNotReady: its layers are not on this host.
	Root(digest, user string) (ImageRoot, error)
}
