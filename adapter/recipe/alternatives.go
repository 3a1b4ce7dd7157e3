package recipe

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// alternativesDir has a file of dpkg's for each name that several packages offer, such as awk.
const alternativesDir = "/var/lib/dpkg/alternatives"

// alternative is a name that several programs offer, by its links.
type alternative struct {
	links   []string // the first is the name, the others come with it
	choices []choice
}

// choice is a program with the targets of the links, and its priority.
type choice struct {
	targets  []string
	priority int
}

// readAlternative reads a file of dpkg's: its mode, the link, a name and a link for each further
// one, an empty line, and for each choice the target, the priority and the further targets.
func readAlternative(text string) (a alternative, ok bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 3 {
		return a, false
	}
	a.links = []string{lines[1]}
	at := 2
	for ; at+1 < len(lines) && lines[at] != ""; at += 2 {
		a.links = append(a.links, lines[at+1])
	}
	for at++; at+len(a.links) < len(lines) && lines[at] != ""; at += len(a.links) + 1 {
		priority, err := strconv.Atoi(lines[at+1])
		if err != nil {
			return a, false
		}
		targets := append([]string{lines[at]}, lines[at+2:at+1+len(a.links)]...)
		a.choices = append(a.choices, choice{targets, priority})
	}
	return a, true
}

// best returns the choice of the highest priority of which the image has the program.
func (a alternative) best(has func(name string) bool) (best choice) {
	for _, c := range a.choices {
		if has(c.targets[0]) && (best.targets == nil || c.priority > best.priority) {
			best = c
		}
	}
	return best
}

// alternatives adds the names that the image's programs share with others. No package has these
// links: its installation makes them.
func (t *tree) alternatives(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	has := func(name string) bool {
		real, err := filepath.EvalSymlinks(name)
		return err == nil && t.entries[strings.TrimPrefix(real, "/")].mode != 0
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a, ok := readAlternative(string(text))
		if !ok {
			continue
		}
		for n, target := range a.best(has).targets {
			if target == "" || unneeded.MatchString(a.links[n]) || !has(target) {
				continue
			}
			link, err := t.parents(a.links[n])
			if err == nil {
				err = t.put(link, entry{mode: fs.ModeSymlink | 0o777, link: target})
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
