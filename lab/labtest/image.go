package labtest

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image makes an image of layers, the lowest first. A layer holds the bytes of files by their path.
func (p *Pando) Image(arch string, c v1.Config, layers ...map[string][]byte) v1.Image {
	p.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Config: c,
	})
	for _, files := range layers {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for path, body := range files {
			h := &tar.Header{Name: path[1:], Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body))}
			if err := w.WriteHeader(h); err != nil {
				p.Fatal(err)
			}
			if _, err := w.Write(body); err != nil {
				p.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			p.Fatal(err)
		}
		if err == nil {
			img, err = mutate.AppendLayers(img, static.NewLayer(b.Bytes(), types.DockerUncompressedLayer))
		}
	}
	if err != nil {
		p.Fatal(err)
	}
	return img
}

// SaveImage writes an image into the test's folder, as `docker save` does.
func (p *Pando) SaveImage(file string, img v1.Image) {
	p.Helper()
	tag, err := name.NewTag("test/image:latest")
	if err == nil {
		err = tarball.WriteToFile(filepath.Join(p.Dir, file), tag, img)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// EchoLayer is a layer with the program echo.
func (p *Pando) EchoLayer() map[string][]byte {
	p.Helper()
	return map[string][]byte{"/app/echo": p.read(p.WithEcho())}
}

func (p *Pando) read(path string) []byte {
	p.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		p.Fatal(err)
	}
	return b
}
