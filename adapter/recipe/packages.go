package recipe

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// installers are packages that only the installation of others needs. A package that is named, or
// whose own version another one asks for, is a part of the program.
var installers = []string{"adduser", "debconf", "init-system-helpers", "lsb-base", "sysvinit-utils",
	"ucf", "dpkg", "perl-base", "systemd", "libsystemd-shared", "passwd", "install-info"}

// unneeded are folders that no program reads.
var unneeded = regexp.MustCompile(`^/(usr/share/(doc|man|info|lintian|locale|bash-completion|bug|` +
	`apport)|etc/(init\.d|cron\.[a-z]+|logrotate\.d|apparmor\.d)|(usr/)?lib/systemd|` +
	`var/lib/systemd)(/|$)`)

// exactly is a dependency on one version, such as "perl-base (= 5.36.0-7)".
var exactly = regexp.MustCompile(`([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9]+)? \(= `)

// packages are the installed packages of this machine with those that each depends on.
type packages struct {
	needs    map[string][][]string // alternatives, by package
	parts    map[string][]string   // those of which a package asks for one version
	provides map[string]string     // a package by a name that it provides
}

// installed reads the list of installed packages.
func installed() (*packages, error) {
	out, err := exec.Command("dpkg-query", "-W",
		"-f=${db:Status-Abbrev}\t${Package}\t${Provides}\t${Pre-Depends},${Depends}\n").Output()
	if err != nil {
		return nil, fmt.Errorf("packages: list those of this machine (`dpkg-query -W`): %w; `programs` "+
			"names programs on machines without dpkg", err)
	}
	p := &packages{needs: map[string][][]string{}, parts: map[string][]string{},
		provides: map[string]string{}}
	for line := range strings.Lines(string(out)) {
		words := strings.SplitN(strings.TrimRight(line, "\n"), "\t", 4)
		if len(words) != 4 || !strings.HasPrefix(words[0], "ii") {
			continue
		}
		for _, name := range alternatives(words[2]) {
			p.provides[name[0]] = words[1]
		}
		p.needs[words[1]] = alternatives(words[3])
		for _, part := range exactly.FindAllStringSubmatch(words[3], -1) {
			p.parts[words[1]] = append(p.parts[words[1]], part[1])
		}
	}
	return p, nil
}

// alternatives reads a field such as "libc6 (>= 2.36), default-mta | mail-transport-agent".
func alternatives(field string) (out [][]string) {
	for one := range strings.SplitSeq(field, ",") {
		var names []string
		for name := range strings.SplitSeq(one, "|") {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
			name, _, _ = strings.Cut(name, ":")
			if name != "" {
				names = append(names, name)
			}
		}
		if names != nil {
			out = append(out, names)
		}
	}
	return out
}

// with returns packages and all that they depend on, sorted.
func (p *packages) with(names []string) ([]string, error) {
	seen := map[string]bool{}
	var add func(name string, part bool)
	add = func(name string, part bool) {
		if _, ok := p.needs[name]; !ok {
			name = p.provides[name]
		}
		if name == "" || seen[name] || !part && slices.Contains(installers, name) {
			return
		}
		seen[name] = true
		for _, any := range p.needs[name] {
			i := slices.IndexFunc(any, func(n string) bool { return p.needs[n] != nil })
			need := any[max(i, 0)]
			add(need, slices.Contains(p.parts[name], need))
		}
	}
	for _, name := range names {
		if _, ok := p.needs[name]; !ok {
			return nil, fmt.Errorf("packages: %s is not installed here: `apt-get install %s`", name, name)
		}
		add(name, true)
	}
	out := make([]string, 0, len(seen))
	for name := range seen {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

// add adds the files of packages to a tree.
func (p *packages) add(t *tree, names []string) error {
	all, err := p.with(names)
	if err != nil {
		return err
	}
	out, err := exec.Command("dpkg-query", append([]string{"-L"}, all...)...).Output()
	if err != nil {
		return fmt.Errorf("packages: list the files of %s: %w", strings.Join(all, ", "), err)
	}
	for line := range strings.Lines(string(out)) {
		file := strings.TrimSpace(line)
		if file == "" || file == "/." || file[0] != '/' || unneeded.MatchString(file) {
			continue
		}
		if _, err := os.Lstat(file); os.IsNotExist(err) { // the machine's owner deleted it
			continue
		}
		if err := t.host(file); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("packages: %w", err)
		}
	}
	if err := t.alternatives(alternativesDir); err != nil {
		return fmt.Errorf("packages: the names that programs share: %w", err)
	}
	return t.put("/tmp", entry{mode: fs.ModeDir | fs.ModeSticky | 0o777})
}
