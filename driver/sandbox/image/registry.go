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
	"net/url"
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
	"pando.run/pando/driver/sandbox/image/proof"
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
	*vault
	ref      name.Reference
	admitted bool         // its address may be inside the network
	proves   bool         // it has to send each blob once, also one that is here
	tenant   pando.Tenant // for which it is asked
	once     sync.Once
	client   *http.Client
	guard    *guard
	err      error
}

// origin is where the blobs of an image come from, and whether that has to be proved.
type origin struct {
	sent       proof.Book
	repository string // "": no registry
	proves     bool
	tenant     pando.Tenant
}

func originOf(sent proof.Book, from []source) origin {
	for _, src := range from {
		if r, ok := src.(*registry); ok {
			return origin{sent, r.ref.Context().Name(), r.proves, r.tenant}
		}
	}
	return origin{sent: sent}
}

// mayUse reports whether a blob that is here may be used for the image.
func (o origin) mayUse(h v1.Hash) bool { return !o.proves || o.sent.HasSent(o.repository, h) }

// came notes that a blob came. Another host sends only what the repository has sent there.
func (o origin) came(h v1.Hash) error {
	if o.repository == "" {
		return nil
	}
	return o.sent.Sent(o.tenant, o.repository, h)
}

// registryOf returns the registry of an image.
func (s *vault) registryOf(i pando.Image) (*registry, error) {
	ref, err := parse(i.Reference)
	if err != nil {
		return nil, err
	}
	if i.Digest != "" {
		ref = ref.Context().Digest(i.Digest)
	}
	return &registry{vault: s, ref: ref, admitted: i.Inside, proves: i.Prove, tenant: i.For}, nil
}

// admits reports whether the address of a reference's registry may be inside the network, by the
// word of this host's owner.
func (s *vault) admits(i pando.Image) (bool, error) {
	ref, err := parse(i.Reference)
	if err != nil || i.Inside {
		return i.Inside, err
	}
	r, err := readRules(s.Registries)
	return r[ref.Context().RegistryStr()].inside, err
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
func (r *registry) String() string { return "registry " + r.host() }

func (r *registry) host() string { return r.ref.Context().RegistryStr() }

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
	in, err := r.opened(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		resp, err := r.get(ctx, "manifests", r.ref.Identifier(), "")
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	})
	if err != nil {
		return v1.Hash{}, nil, err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, smallMax+1))
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
	at := fmt.Sprintf("https://%s/v2/%s/%s/%s", r.host(), r.ref.Context().RepositoryStr(), kind, id)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
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
	list, err := readRules(r.Registries)
	if err != nil {
		return nil, final(err)
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, repo)
	if err != nil {
		return nil, final(fmt.Errorf("read the credentials for %s: %w", r.host(), err))
	}
	tlsConfig, err := trusting(r.Certificates, r.host())
	if err != nil {
		return nil, final(err)
	}
	admitted := r.admitted || list[r.host()].inside
	g := newGuard(r.vault, r.host(), admitted, list, tlsConfig)
	r.guard = g
	if onThisHost(r.host()) && !g.plain(r.host()) {
		bare, err := g.lacksTLS(ctx)
		if err != nil {
			return nil, err
		}
		if bare {
			g.speakHTTP()
			auth = authn.Anonymous
		}
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, g,
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
	var answer *transport.Error
	switch {
	case errors.Is(err, errFinal) || errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errInside), !r.mayBeInside() && errors.As(err, new(*net.DNSError)):
		return r.refused()
	case errors.As(err, &answer):
		return r.explainAnswer(answer.StatusCode)
	}
	return r.explainSilence(err)
}

func (r *registry) mayBeInside() bool { return r.guard == nil || r.guard.admitted }

// explainAnswer returns the error for a status that is no success.
func (r *registry) explainAnswer(status int) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		if r.guard != nil && r.guard.bare {
			return final(fmt.Errorf("%w: it asks for a password, and it does not speak TLS; a password goes "+
				"there once `%s http` is a line of %s", pando.ErrForbidden, r.host(), r.Registries))
		}
		return final(fmt.Errorf("%w: it does not let this host read %s; log in there as root with "+
			"`docker login %s` or `podman login %[3]s`, and try again", pando.ErrForbidden,
			r.ref.Context().RepositoryStr(), r.host()))
	case http.StatusNotFound:
		return final(fmt.Errorf("%w: it has no %s; check the name and the tag", pando.ErrNotFound, r.ref))
	case http.StatusRequestedRangeNotSatisfiable:
		return errRange
	}
	err := fmt.Errorf("%w: it answered %d", pando.ErrUnreachable, status)
	if status/100 == 4 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout {
		err = final(err)
	}
	return err
}

// explainSilence returns the error for a registry without an answer, or with one that cannot be
// used.
func (r *registry) explainSilence(err error) error {
	var wrong *tls.CertificateVerificationError
	var first *url.Error // the library may add that HTTP was refused
	asked := errors.As(err, &first)
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		where := "the system's store"
		if len(r.Certificates) > 0 {
			where = filepath.Join(r.Certificates[0], r.host(), "ca.crt")
		}
		return final(fmt.Errorf("%w: its certificate is of an authority that this host does not know; put "+
			"the authority's certificate into %s on each host", pando.ErrRefused, where))
	case errors.As(err, &wrong):
		return final(fmt.Errorf("%w: its certificate is not valid: %w", pando.ErrRefused, wrong.Err))
	case errors.Is(err, http.ErrSchemeMismatch), asked && errors.Is(first.Err, errPlain):
		return final(fmt.Errorf("%w: it, or what it leads to, does not speak TLS; give it a certificate, "+
			"or add the line `%s http` to %s on each host", pando.ErrRefused, r.host(), r.Registries))
	case !asked:
		return final(fmt.Errorf("%w: it does not answer as a registry: %w", pando.ErrRefused, err))
	}
	return fmt.Errorf("%w: it does not answer: %w", pando.ErrUnreachable, first.Err)
}
