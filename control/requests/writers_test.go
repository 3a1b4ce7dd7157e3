package requests

import (
	"testing"

	"pando.run/pando"
)

func TestARootWithAFolderIsWarnedOf(t *testing.T) {
	for user, want := range map[string]bool{
		"": false, "0": true, "0:100": true, "root": true, "1000": false, "www-data": false,
	} {
		got := warnings(pando.Spec{User: user, WorkingDir: "/srv/web"})
		if len(got) > 0 != want {
			t.Errorf("user %q: %q", user, got)
		}
	}
}
