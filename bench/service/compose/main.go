// Command compose converts every Compose file below a folder and counts the reasons of refusals.
//
// It prints one row, and with -v the reasons of each file. A file next to a template.toml, as in
// Dokploy/templates, gets the variables of that template as its .env. It starts nothing.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando/adapter/compose"
	"pando.run/pando/spec"
)

// reason is the kind of a refusal.
type reason string

const (
	socket     reason = "socket"     // the socket of Docker controls the host
	privileges reason = "privileges" // powers, devices or namespaces of the host
	value      reason = "value"      // a variable or a file has no value
	other      reason = "other"
)

// row counts the files of a folder. A file with several reasons counts once, by the first of
// socket, privileges, value and other.
type row struct {
	files, converted, warned int
	refused                  map[reason]int
}

// print prints a row, with the share of the files that need nothing from outside.
func (r row) print(w io.Writer) {
	fit := r.files - r.refused[socket] - r.refused[privileges] - r.refused[value]
	fmt.Fprintln(w, "files,converted,with_warnings,socket,privileges,value,other,share")
	fmt.Fprintf(w, "%d,%d,%d,%d,%d,%d,%d,%.1f%%\n", r.files, r.converted, r.warned, r.refused[socket],
		r.refused[privileges], r.refused[value], r.refused[other],
		100*float64(r.converted)/float64(max(fit, 1)))
}

var fileName = regexp.MustCompile(`^(docker-)?compose[a-z._-]*\.ya?ml$`)

// measure converts the Compose files below a folder. more gets the reasons of each file.
func measure(ctx context.Context, folder string, more io.Writer) (row, error) {
	out := row{refused: map[reason]int{}}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !fileName.MatchString(d.Name()) ||
			strings.Contains(d.Name(), "override") {
			return err
		}
		out.files++
		r, err := convert(ctx, path)
		if problems, ok := errors.AsType[spec.Problems](err); ok {
			why := reasonOf(problems)
			out.refused[why]++
			fmt.Fprintf(more, "%s: %s\n%v\n", path, why, problems)
			return nil
		}
		if err != nil {
			return err
		}
		out.converted++
		if len(r.Warnings) > 0 {
			out.warned++
			fmt.Fprintf(more, "%s: converted\n%v\n", path, r.Warnings)
		}
		return nil
	})
	return out, err
}

// convert converts a copy of a file's folder, which has an .env of the template beside the file.
func convert(ctx context.Context, path string) (compose.Result, error) {
	dir, err := os.MkdirTemp("", "compose-")
	if err != nil {
		return compose.Result{}, err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(filepath.Dir(path))); err != nil {
		return compose.Result{}, err
	}
	template, err := os.ReadFile(filepath.Join(dir, "template.toml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ".env"), []byte(variables(string(template))), 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return compose.Result{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return compose.Result{}, err
	}
	return compose.Parse(ctx, filepath.Base(path), data, dir, compose.Options{Project: "measured"})
}

var (
	pair   = regexp.MustCompile(`^\s*"?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"?([^"]*)"?,?\s*$`)
	helper = regexp.MustCompile(`\$\{[^}]*\}`)
)

// made returns a value in place of one that Dokploy makes up.
func made(helper string) string {
	if strings.Contains(strings.ToLower(helper), "port") {
		return "8080"
	}
	return "made"
}

// variables returns the variables of a template as lines of an .env file. Values that Dokploy makes
// up become a word.
func variables(template string) string {
	var out strings.Builder
	known, in := map[string]string{}, ""
	for line := range strings.Lines(template) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "env = [") || line == "[config.env]":
			in = "env"
			line = strings.TrimPrefix(line, "env = [")
		case strings.HasPrefix(line, "[") || line == "]":
			in = line
		}
		for part := range strings.SplitSeq(line, `", "`) {
			m := pair.FindStringSubmatch(strings.TrimSuffix(part, "]"))
			switch value := ""; {
			case m == nil:
			case in == "[variables]":
				known[m[1]] = helper.ReplaceAllStringFunc(m[2], made)
			case in == "env":
				value = helper.ReplaceAllStringFunc(m[2], func(v string) string {
					return cmp.Or(known[v[2:len(v)-1]], made(v))
				})
				fmt.Fprintf(&out, "%s=%s\n", m[1], value)
			}
		}
	}
	return out.String()
}

var marks = []struct {
	reason
	is *regexp.Regexp
}{
	{socket, regexp.MustCompile(`docker\.sock|podman\.sock|/var/run/docker`)},
	{privileges, regexp.MustCompile(`\.(privileged|cap_add|pid|ipc|uts|cgroup|gpus|runtime|devices|` +
		`device_cgroup_rules|network_mode|use_api_socket):|folders\[\d+\]: `)},
	{value, regexp.MustCompile(`has no value|is missing a value|does not exist: make it|is not set: set`)},
}

// reasonOf returns the reason of a refusal.
func reasonOf(all spec.Problems) reason {
	for _, m := range marks {
		if slices.ContainsFunc(all, func(p spec.Problem) bool { return m.is.MatchString(p.Error()) }) {
			return m.reason
		}
	}
	return other
}

func main() {
	verbose := flag.Bool("v", false, "print the reasons of each file")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: compose [-v] FOLDER")
		os.Exit(2)
	}
	w := bufio.NewWriter(os.Stdout)
	defer w.Flush()
	more := io.Discard
	if *verbose {
		more = w
	}
	r, err := measure(context.Background(), flag.Arg(0), more)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
	r.print(w)
}
