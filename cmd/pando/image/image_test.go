package image

import (
	"bytes"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func anImage() pando.ImageStatus {
	return pando.ImageStatus{
		Host: "host1", Digest: "sha256:" + strings.Repeat("ab", 32), References: []string{"shop/web:1"},
		Config: pando.ImageConfig{Architecture: "amd64", Entrypoint: []string{"/start", "-v"},
			Environment: map[string]string{"B": "2", "A": "1\x1b[2J"}, User: "web", StopSignal: "SIGQUIT",
			Exposed: []string{"80/tcp"}},
		Layers:   []pando.ImageLayer{{Digest: "sha256:cd", Bytes: 3 << 19}},
		Unpacked: true, Used: consoletest.Noon, Services: []pando.ServiceKey{pando.DefaultService("web")},
	}
}

func TestImagesAreATable(t *testing.T) {
	var b bytes.Buffer
	none := anImage()
	none.Services, none.Unpacked = nil, false
	images(&b, []pando.ImageStatus{anImage(), none})
	got := strings.ReplaceAll(b.String(), consoletest.Noon.Local().Format("2006-01-02 15:04:05"), "NOON")
	want := "DIGEST SIZE LAYERS UNPACKED USED SERVICES NAMES\n" +
		"abababababab 1.5 MiB 1 yes NOON web shop/web:1\n" +
		"abababababab 1.5 MiB 1 no NOON - shop/web:1"
	if got = consoletest.Squeeze(got); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAnImageShowsWhatItGives(t *testing.T) {
	var b bytes.Buffer
	imageOf(&b, anImage())
	got := consoletest.Squeeze(b.String())
	for _, want := range []string{"entrypoint /start -v\n", "environment A=1", "environment B=2\n",
		"user web\n", "exposed ports 80/tcp\n", "layer sha256:cd 1.5 MiB"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Contains(got, "working_dir") {
		t.Errorf("it has a control character, or a word without a value:\n%q", got)
	}
}
