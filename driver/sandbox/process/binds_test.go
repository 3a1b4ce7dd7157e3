package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

// A program sees folders and files of the host at paths of its own, in an image and outside of one.
func TestFoldersOfTheHostAtOtherPaths(t *testing.T) {
	dir := filepath.Dir(t.TempDir())
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.Mkdir(at("themes"), 0o755), os.Mkdir(at("inbox"), 0o755),
		os.Chmod(at("inbox"), 0o777), os.WriteFile(at("themes/dark"), []byte("dark\n"), 0o644),
		os.WriteFile(at("web.conf"), []byte("port 80\n"), 0o644),
		os.Symlink(at("web.conf"), at("link.conf")))
	if err != nil {
		t.Fatal(err)
	}
	binds := func(s *pando.Spec) {
		s.Folders = []pando.Folder{{Path: at("themes"), At: "/srv/themes"},
			{Path: at("inbox"), At: "/srv/themes-inbox", Write: true},
			{Path: at("link.conf"), At: "/opt/web/web.conf"}}
	}
	const script = "cat /srv/themes/dark /opt/web/web.conf; echo new > /srv/themes-inbox/mail; " +
		"(echo x > /srv/themes/x) 2>/dev/null || echo refused; " +
		"(echo x > /opt/web/web.conf) 2>/dev/null || echo refused; ls /srv"
	const want = "dark port 80 refused refused themes themes-inbox"
	drivers := map[string]*Driver{"of the host": newDriver(t, 0), "image": newImageDriver(t, 0)}
	for name, d := range drivers {
		t.Run(name, func(t *testing.T) {
			b := start(t, d, "web-1", 1, func(s *pando.Spec) {
				if name == "image" {
					withImage(s)
				}
				binds(s)
			}, script)
			wantOutput(t, b, want)
			if text, err := os.ReadFile(at("inbox/mail")); err != nil || string(text) != "new\n" {
				t.Errorf("the host has %q, %v", text, err)
			}
			_ = os.Remove(at("inbox/mail")) // missing if the error above was reported
		})
	}
}

// The data of Pando are in no instance, whichever way a spec names them.
func TestNoFolderOfASpecHasTheDataOfPando(t *testing.T) {
	d := newDriver(t, 0)
	data := t.TempDir()
	d.Hidden = append(d.Hidden, data)
	link := filepath.Join(t.TempDir(), "link")
	err := errors.Join(os.Mkdir(filepath.Join(data, "pki"), 0o755), os.Symlink(data, link))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{data, filepath.Join(data, "pki"), filepath.Dir(data), link} {
		_, err := startAs(t.Context(), d, "web-1", 1, func(s *pando.Spec) {
			s.Folders = []pando.Folder{{Path: path, At: "/srv/x"}}
		}, "true")
		if !errors.Is(err, pando.ErrRefused) {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err = startAs(t.Context(), d, "web-1", 1, func(s *pando.Spec) {
		s.Folders = []pando.Folder{{Path: "/srv/gone", At: "/srv/x"}}
	}, "true")
	if err == nil || !strings.Contains(err.Error(), "/srv/gone is missing on this host") {
		t.Errorf("a folder that is missing: %v", err)
	}
}
