package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"pando.run/pando"
)

const (
	dialWaitMax   = 10 * time.Second
	answerWaitMax = 30 * time.Second // until a registry begins its answer
)

// accepted are the kinds of manifests that are read.
var accepted = []string{
	string(types.OCIImageIndex), string(types.OCIManifestSchema1), string(types.DockerManifestList),
	string(types.DockerManifestSchema2),
}

// registry is the repository of one image. It logs in once, when it is first asked.
type registry struct {
	ref          name.Reference
	certificates []string
	once         sync.Once
	client       *http.Client
	err          error
}

// parse reads a reference of a registry.
func parse(reference string) (name.Reference, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, fmt.Errorf("%w: image %q: %w", pando.ErrInvalid, reference, err)
	}
	return ref, nil
}

// String names the registry.
func (r *registry) String() string { return "registry " + r.ref.Context().RegistryStr() }

func (r *registry) open(ctx context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, error) {
	if d.MediaType.IsImage() || d.MediaType.IsIndex() {
		resp, err := r.get(ctx, "manifests", d.Digest.String(), "")
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	part := ""
	if offset > 0 {
		part = fmt.Sprintf("bytes=%d-%d", offset, d.Size-1)
	}
	resp, err := r.get(ctx, "blobs", d.Digest.String(), part)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK && offset > 0 { // it sends all of it
		if _, err := io.CopyN(io.Discard, resp.Body, offset); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp.Body, nil
}

// resolve returns the digest and the bytes of the manifest that the reference names now.
func (r *registry) resolve(ctx context.Context) (v1.Hash, []byte, error) {
	resp, err := r.get(ctx, "manifests", r.ref.Identifier(), "")
	if err != nil {
		return v1.Hash{}, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, smallMax+1))
	switch {
	case err != nil:
		return v1.Hash{}, nil, err
	case len(b) > smallMax:
		return v1.Hash{}, nil, final(fmt.Errorf("%w: its manifest is larger than %d bytes",
			pando.ErrTooLarge, smallMax))
	}
	got := hash(b)
	if want, ok := r.ref.(name.Digest); ok && want.DigestStr() != got.String() {
		h, err := digest(want.DigestStr())
		if err == nil {
			err = wrongDigest(h, got)
		}
		return v1.Hash{}, nil, final(err)
	}
	return got, b, nil
}

// errRange marks the answer of a registry that does not send a part of a blob.
var errRange = errors.New("the registry does not send a part of it")

func (r *registry) get(ctx context.Context, kind, id, part string) (*http.Response, error) {
	r.once.Do(func() { r.client, r.err = r.login(ctx) })
	if r.err != nil {
		err := r.explain(r.err)
		r.once = sync.Once{} // the next attempt may reach it
		return nil, err
	}
	repo := r.ref.Context()
	url := fmt.Sprintf("%s://%s/v2/%s/%s/%s", repo.Registry.Scheme(), repo.RegistryStr(),
		repo.RepositoryStr(), kind, id)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, final(err)
	}
	if kind == "manifests" {
		q.Header.Set("Accept", strings.Join(accepted, ","))
	}
	if part != "" {
		q.Header.Set("Range", part)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		return nil, r.explain(err)
	}
	err = transport.CheckError(resp, http.StatusOK, http.StatusPartialContent)
	if err != nil {
		resp.Body.Close()
		return nil, r.explain(err)
	}
	return resp, nil
}

// login asks the registry for the right to read one repository, with the credentials of the files
// that docker and podman write.
func (r *registry) login(ctx context.Context) (*http.Client, error) {
	repo := r.ref.Context()
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		return nil, final(fmt.Errorf("read the credentials for %s: %w", repo.RegistryStr(), err))
	}
	tlsConfig, err := trusting(r.certificates, repo.RegistryStr())
	if err != nil {
		return nil, final(err)
	}
	inner := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: dialWaitMax}).DialContext,
		TLSHandshakeTimeout: dialWaitMax, ResponseHeaderTimeout: answerWaitMax,
		DisableCompression: true, IdleConnTimeout: answerWaitMax, MaxIdleConnsPerHost: atOnce,
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, inner,
		[]string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

// trusting returns the TLS settings for a registry: the system's authorities, and those in a folder
// with the registry's name.
func trusting(folders []string, host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, dir := range folders {
		files, _ := filepath.Glob(filepath.Join(dir, filepath.Base(host), "*.crt"))
		for _, file := range files {
			pem, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read the authority of a registry: %w", err)
			}
			if c.RootCAs == nil {
				if c.RootCAs, err = x509.SystemCertPool(); err != nil {
					c.RootCAs = x509.NewCertPool()
				}
			}
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("%w: %s has no certificate", pando.ErrInvalid, file)
			}
		}
	}
	return c, nil
}

// explain adds the cause and the next command to the error of a registry.
func (r *registry) explain(err error) error {
	host := r.ref.Context().RegistryStr()
	var answer *transport.Error
	if !errors.As(err, &answer) {
		if errors.Is(err, errFinal) || errors.Is(err, context.Canceled) {
			return err
		}
		return fmt.Errorf("%w: %s does not answer: %w", pando.ErrUnavailable, host, err)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return final(fmt.Errorf("%w: %s does not let this host read %s; log in there as root with "+
			"`docker login %[2]s` or `podman login %[2]s`, and try again", pando.ErrForbidden, host,
			r.ref.Context().RepositoryStr()))
	case http.StatusNotFound:
		return final(fmt.Errorf("%w: %s has no %s; check the name and the tag", pando.ErrNotFound, host,
			r.ref))
	case http.StatusRequestedRangeNotSatisfiable:
		return errRange
	}
	err = fmt.Errorf("%w: %s answered %d", pando.ErrUnavailable, host, answer.StatusCode)
	if answer.StatusCode/100 == 4 && answer.StatusCode != http.StatusTooManyRequests &&
		answer.StatusCode != http.StatusRequestTimeout {
		err = final(err)
	}
	return err
}
