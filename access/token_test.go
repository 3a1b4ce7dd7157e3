package access

import (
	"errors"
	"pando.run/pando"
	"strings"
	"testing"
	"time"
)

func TestATokenAdmitsItsSecretForItsTime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	secret := []byte(strings.Repeat("s", 32))
	k := TokenKey{"acme", "ci"}
	own := Token{TokenKey: k, Hash: TokenHash(secret), Until: now.Add(time.Hour)}
	for name, c := range map[string]struct {
		Token
		secret []byte
		at     time.Time
		text   string // of the refusal; "": admitted
	}{
		"its secret":        {own, secret, now, ""},
		"at its last":       {own, secret, now.Add(time.Hour - 1), ""},
		"after its end":     {own, secret, now.Add(time.Hour), "ended at"},
		"another secret":    {own, []byte(strings.Repeat("t", 32)), now, "not one of this cluster"},
		"no secret":         {own, nil, now, "not one of this cluster"},
		"the hash":          {own, own.Hash, now, "not one of this cluster"},
		"an unknown token":  {Token{}, secret, now, "not one of this cluster"},
		"a token with no h": {Token{TokenKey: k, Until: own.Until}, nil, now, "not one of this cluster"},
	} {
		err := c.Admits(c.secret, c.at)
		if (err == nil) != (c.text == "") || err != nil &&
			(!errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

func TestATokenIsChecked(t *testing.T) {
	good := Token{TokenKey: TokenKey{"acme", "ci"}, Hash: TokenHash(nil), May: TokenRights}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Token){
		"a tenant with a slash": func(t *Token) { t.Tenant = "a/b" },
		"a name with a dot":     func(t *Token) { t.Name = "a.b" },
		"no name":               func(t *Token) { t.Name = "" },
		"a short hash":          func(t *Token) { t.Hash = t.Hash[:31] },
		"an unknown right":      func(t *Token) { t.May = []TokenRight{"rule"} },
	} {
		bad := good
		spoil(&bad)
		if err := bad.Check(); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := good
	bad.May = []TokenRight{TokenScale}
	want := "--may scale,deploy --replace"
	if err := bad.Lacks(TokenDeploy); !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if got := (Token{}).Text() + " " + good.Text(); got != "read read,scale,deploy,exec,host" {
		t.Errorf("the rights are %q", got)
	}
}

// settings returns a setting beside a harmless one.
func settings(name string) map[string]string {
	return map[string]string{"net.core.somaxconn": "1024", name: "1"}
}

// A spec of a caller from outside the hosts uses nothing of the hosts.
func TestWordsOfTheHosts(t *testing.T) {
	own := pando.Spec{Name: "shop", Image: pando.Image{Reference: "registry.example/shop:1"},
		Reach: []pando.Reach{pando.ReachInternet}, Sysctls: map[string]string{"net.core.somaxconn": "1024",
			"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.tcp_keepalive_time": "60"}}
	if word := OfHosts(own); word != "" {
		t.Fatalf("an image of a registry uses %q", word)
	}
	for want, spoil := range map[string]func(*pando.Spec){
		"command without image": func(s *pando.Spec) { s.Image = pando.Image{} },
		"image: oci:/srv/image": func(s *pando.Spec) { s.Image.Reference = "oci:/srv/image" },
		"bundle":                func(s *pando.Spec) { s.Bundle.Folder = "/srv" },
		"folders":               func(s *pando.Spec) { s.Folders = []pando.Folder{{Path: "/etc", At: "/data"}} },
		"secrets of files":      func(s *pando.Spec) { s.Secrets = map[string]string{"a": "/etc/shadow"} },
		"security_opt":          func(s *pando.Spec) { s.SecurityOpt = []string{"seccomp=unconfined"} },
		"userns_mode":           func(s *pando.Spec) { s.UsernsMode = pando.UsernsHost },
		"publish.host":          func(s *pando.Spec) { s.Ports = []pando.Port{{Published: 80, Host: 80}} },
		"endpoints":             func(s *pando.Spec) { s.Endpoints = []pando.External{{}} },
		"reach: host":           func(s *pando.Spec) { s.Reach = []pando.Reach{pando.ReachInternet, pando.ReachHost} },
		"reach: tenants":        func(s *pando.Spec) { s.Reach = []pando.Reach{pando.ReachTenants} },
		"reach: metadata":       func(s *pando.Spec) { s.Reach = []pando.Reach{pando.ReachMetadata} },

		"sysctls.net.ipv4.ipfrag_high_thresh": func(s *pando.Spec) { s.Sysctls = settings("net.ipv4.ipfrag_high_thresh") },
		"sysctls.net.ipv4.tcp_rmem":           func(s *pando.Spec) { s.Sysctls = settings("net.ipv4.tcp_rmem") },
		"sysctls.net.core.wmem_max":           func(s *pando.Spec) { s.Sysctls = settings("net.core.wmem_max") },
		"sysctls.net.ipv6.route.max_size":     func(s *pando.Spec) { s.Sysctls = settings("net.ipv6.route.max_size") },
		"sysctls.net.ipv4.neigh.eth0.unres_qlen_bytes": func(s *pando.Spec) {
			s.Sysctls = settings("net.ipv4.neigh.eth0.unres_qlen_bytes")
		},
	} {
		s := own
		spoil(&s)
		if got := OfHosts(s); got != want {
			t.Errorf("OfHosts is %q, want %q", got, want)
		}
	}
}

// A virtual machine reaches a file of the host, so a tenant's token deploys none.
func TestAVirtualMachineIsOfTheHosts(t *testing.T) {
	if word := OfHosts(pando.Spec{Kind: pando.KindVM}); word != "kind: vm" {
		t.Errorf("a tenant's token may deploy it: %q", word)
	}
}
