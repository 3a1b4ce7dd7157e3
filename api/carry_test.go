package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

// readFiles is the store of images of host h2.
type readFiles struct{ seen []string }

func (f *readFiles) Bundle(
	_ context.Context, folder string,
) (b pando.Bundle, left []string, err error) {
	f.seen = append(f.seen, folder)
	if folder == "/none" {
		return b, nil, fmt.Errorf("bundle /none: %w", pando.ErrNotFound)
	}
	return pando.Bundle{Folder: folder, Digest: "sha256:b", Host: "h2"},
		[]string{"a key", "b,\r\nc"}, nil
}

func (f *readFiles) Resolve(
	_ context.Context, _ pando.Tenant, i pando.Image,
) (pando.Image, pando.ImageConfig, error) {
	f.seen = append(f.seen, i.Reference)
	i.Digest, i.Host = "sha256:i", "h2"
	return i, pando.ImageConfig{}, nil
}

// A host without a server names the digest of its files. Everything else passes as it is.
func TestFilesTravelWithADeploy(t *testing.T) {
	for _, c := range []struct{ path, body, want, read string }{
		{"/v1/services", `{"name":"web","bundle":{"folder":"/srv/web"},"later":1}`,
			`{"bundle":{"folder":"/srv/web","digest":"sha256:b","host":"h2"},"later":1,"name":"web"}`,
			"/srv/web"},
		{"/v1/services", `{"name":"web","image":{"reference":"docker-archive:/srv/w.tar"}}`,
			`{"image":{"reference":"docker-archive:/srv/w.tar","digest":"sha256:i","host":"h2"},` +
				`"name":"web"}`, "docker-archive:/srv/w.tar"},
		{"/v1/images", `{"reference":"oci:/srv/layout"}`,
			`{"reference":"oci:/srv/layout","digest":"sha256:i","host":"h2"}`, "oci:/srv/layout"},
		{"/v1/images", `{"reference":"shop/web:1"}`, `{"reference":"shop/web:1"}`, ""},
		{"/v1/services", `{"name":"web","image":{"reference":"shop/web:1"}}`,
			`{"name":"web","image":{"reference":"shop/web:1"}}`, ""},
		{"/v1/services", `{"name": "web"}`, `{"name": "web"}`, ""},
		{"/v1/services", `not JSON`, `not JSON`, ""}, // the server explains it
		{"/v1/services/web/rollback", `{"bundle":{"folder":"/x"}}`, `{"bundle":{"folder":"/x"}}`, ""},
	} {
		var got, left string
		take := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got, left = string(b), r.Header.Get(leftHeader)
			if r.ContentLength != int64(len(b)) {
				t.Errorf("%s: %d bytes with the length %d", c.body, len(b), r.ContentLength)
			}
		})
		f := &readFiles{}
		w := httptest.NewRecorder()
		Carry(f, take, take).ServeHTTP(w, httptest.NewRequest("POST", c.path,
			strings.NewReader(c.body)))
		if got != c.want || strings.Join(f.seen, "") != c.read {
			t.Errorf("%s\nsent %s\nwant %s\nread %v", c.body, got, c.want, f.seen)
		}
		if c.read == "/srv/web" && !strings.Contains(leftOut(left)[0], "without a key, b,\r\nc:") {
			t.Errorf("the warning is %q of %q", leftOut(left), left)
		}
	}
}

func TestFilesThatCannotBeReadEndTheDeploy(t *testing.T) {
	take := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was passed on") })
	for body, want := range map[string]int{
		`{"bundle":{"folder":"/none"}}`:     404,
		strings.Repeat(" ", bodyBytesMax+1): 413,
	} {
		w := httptest.NewRecorder()
		Carry(&readFiles{}, take, take).ServeHTTP(w, httptest.NewRequest("POST", "/v1/services",
			strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%.40q: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
}

// deploying records the specs that reach control.
type deploying struct {
	telling
	got []pando.Spec
}

func (d *deploying) Deploy(
	_ context.Context, s pando.Spec, _ pando.Asker,
) (pando.ServiceStatus, error) {
	d.got = append(d.got, s)
	return pando.ServiceStatus{}, nil
}

// The server must not take its own folder for one of the asking host.
func TestAServerTakesNoFilesOfItsOwnForAnotherHost(t *testing.T) {
	bundle := func(digest string, h pando.HostName) pando.Spec {
		return pando.Spec{Name: "web", Bundle: pando.Bundle{Folder: "/srv", Digest: digest, Host: h}}
	}
	file := pando.Image{Reference: "docker-archive:/w.tar"}
	known := file
	known.Digest = "sha256:00"
	for _, c := range []struct {
		what   string
		s      pando.Spec
		member bool
		want   int
	}{
		{"a bundle that travelled", bundle("sha256:00", "h2"), true, 200},
		{"a bundle without a digest", bundle("", ""), true, 400},
		{"a bundle of another host", bundle("sha256:00", "h3"), true, 400},
		{"a file without a digest", pando.Spec{Name: "web", Image: file}, true, 400},
		{"a file with a digest", pando.Spec{Name: "web", Image: known}, true, 200},
		{"the server's own folder", bundle("", ""), false, 200},
		{"a folder of a former deploy", bundle("sha256:00", "h3"), false, 200},
	} {
		ops := &deploying{}
		h := OperatorsHandler(ops, func(context.Context) error { return nil })
		if c.member {
			h = ForMembers(h, isHost("h2", pando.RightDeploy))
		}
		body, err := json.Marshal(c.s)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/services", bytes.NewReader(body)))
		if w.Code != c.want || (len(ops.got) == 1) != (c.want == 200) {
			t.Errorf("%s: %d %s, want %d; deployed %+v", c.what, w.Code, w.Body, c.want, ops.got)
		}
		if !c.member && slices.ContainsFunc(ops.got, func(s pando.Spec) bool {
			return s.Bundle.Digest != ""
		}) {
			t.Errorf("%s: the digest of a former deploy counts", c.what)
		}
	}
}
