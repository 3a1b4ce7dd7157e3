package spec

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
	"pando.run/pando/spec/config"
)

const configsWant = "a map such as {haproxy.cfg: {file: ./haproxy.cfg, template: true}}"

// configPattern is that of secrets: a name has no dot first, so none hides a candidate.
const configPattern = secretPattern

var configModeKind = textKind(`^0?[0-7]{3}$`, "permissions such as 0444",
	[]any{"string", "integer"}, func(s string) (any, error) {
		n, err := strconv.ParseUint(s, 8, 12)
		return uint32(n), err
	})

// configText is the content of a config by a word of its file.
var configText = kind{
	schema: map[string]any{"type": "string"},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		s, ok := text(n)
		if !ok {
			r.wrong(n, where, "a text")
			return
		}
		take(s)
	},
}

// configWords returns the words of one config, which sets c. take gets the path of its file.
func configWords(c *pando.Config, file *string) []field {
	return []field{
		{name: "file", doc: "File beside the spec with the content. A deploy reads it.",
			kind: pathKind, set: func(_ *pando.Spec, v any) { *file = v.(string) }},
		{name: "content", doc: "The content itself.", kind: configText,
			set: func(_ *pando.Spec, v any) { c.Text = v.(string) }},
		{name: "template", doc: "Whether the content is a template.", kind: boolKind,
			set: func(_ *pando.Spec, v any) { c.Template = v.(bool) }},
		{name: "target", doc: "A second path of the file in the instance.",
			kind: configText, set: func(_ *pando.Spec, v any) { c.Target = v.(string) }},
		{name: "mode", doc: "Permissions of the file.", kind: configModeKind,
			set: func(_ *pando.Spec, v any) { c.Mode = v.(uint32) }},
		{name: "check", doc: "Command inside the instance that decides about a new content; {} is " +
			"the path of the new file.", kind: commandKind,
			set: func(_ *pando.Spec, v any) { c.Check = v.([]string) }},
		{name: "on_change", doc: "Signal for the program after a change.", kind: signalKind,
			set: func(_ *pando.Spec, v any) { c.OnChange = v.(string) }},
	}
}

func configSchema() map[string]any {
	properties := objectSchema(configWords(&pando.Config{}, new(string)))
	return map[string]any{"type": "object", "minProperties": 1,
		"propertyNames": map[string]any{"pattern": configPattern},
		"additionalProperties": map[string]any{"anyOf": []any{
			map[string]any{"type": "string", "pattern": `^[^\x00]+$`}, properties}}}
}

var configsKind = kind{
	schema: configSchema(),
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		var out []pando.Config
		pairs, _ := r.pairs(n, where, configsWant)
		for _, p := range pairs {
			at := join(where, p.key)
			c, file, from := pando.Config{Name: p.key}, "", p.value
			if s, ok := text(p.value); ok && s != "" {
				file = s
			} else if !r.members(p.value, at, "a file, or a map with file or content",
				configWords(&c, &file)) {
				continue
			}
			switch {
			case file != "" && c.Text != "":
				r.at(p.where, at, "has file and content: drop one of them")
				continue
			case file != "":
				content, err := configFile(r.dir, file)
				if err != nil {
					r.at(from, at, "%v", err)
					continue
				}
				c.Text = content
			}
			if c.Text == "" {
				r.at(p.where, at, "needs a file or a content that is not empty")
				continue
			}
			if err := checkTemplate(c, config.NewBudget()); err != nil {
				r.at(p.where, at, "%s", strings.TrimPrefix(err.Error(), pando.ErrInvalid.Error()+": "))
				continue
			}
			out = append(out, c)
		}
		slices.SortFunc(out, func(a, b pando.Config) int { return strings.Compare(a.Name, b.Name) })
		take(out)
	},
}

// configFile reads the file of a config: text of at most pando.ConfigBytesMax.
func configFile(dir, file string) (string, error) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	st, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file: name a file with the content", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, pando.ConfigBytesMax+1))
	if err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	return string(b), CheckConfigText(string(b))
}

// CheckConfigText returns nil if a text can be the content of a config, else the reason.
func CheckConfigText(s string) error {
	switch {
	case len(s) > pando.ConfigBytesMax:
		return fmt.Errorf("the content has more than 128 KiB: use a bundle, an image or a volume")
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("the content is no UTF-8 text: use a bundle, an image or a volume")
	}
	return nil
}

// checkTemplate parses the template of a config and renders it once with sample facts.
func checkTemplate(c pando.Config, b *config.Budget) error {
	if !c.Template {
		return nil
	}
	t, err := config.Parse(c.Name, c.Text)
	if err == nil {
		_, err = t.Render(t.Sample(config.Self{
			Ports: []config.Port{{Published: 80, Target: 8080, Protocol: "tcp"}},
		}), b)
	}
	return err
}

var configName = regexp.MustCompile(configPattern)

// configs checks the configs of a spec.
func (c *checks) configs(s pando.Spec) {
	c.that(len(s.Configs) <= pando.ConfigsMax, "configs: more than %d", pando.ConfigsMax)
	seen, all, budget := map[string]bool{}, 0, config.NewBudget()
	for _, one := range s.Configs {
		where := "configs." + one.Name
		c.that(configName.MatchString(one.Name), "%s: want a name of letters, digits, '_', '-' and '.'",
			where)
		c.that(!seen[one.Name], "%s is there twice", where)
		c.also(wrapped(where, CheckConfigText(one.Text)))
		c.that(one.Mode <= 0o777, "%s: mode: want permissions such as 0444", where)
		c.signal(where+": on_change", one.OnChange)
		hole := strings.Contains(strings.Join(one.Check, " "), "{}")
		c.that(len(one.Check) == 0 || hole,
			"%s: check: names no {}, which stands for the path of the new file", where)
		for _, w := range one.Check {
			c.text(where+".check", w)
		}
		if one.Target != "" {
			c.configTarget(s, where, one.Target)
			c.that(!seen[one.Target], "%s: target: %s has a config already", where, one.Target)
		}
		c.configSecrets(s, one, budget)
		seen[one.Name], seen[one.Target] = true, true
		all += len(one.Text)
	}
	c.that(all <= pando.ConfigsBytesMax, "configs: have more than %d bytes together",
		pando.ConfigsBytesMax)
}

// within reports whether a path is a folder or lies in it.
func within(folder, at string) bool {
	return at == folder || strings.HasPrefix(at, strings.TrimSuffix(folder, "/")+"/")
}

func (c *checks) configTarget(s pando.Spec, where, at string) {
	c.text(where, at)
	c.that(path.IsAbs(at) && path.Clean(at) == at && at != "/",
		"%s: target: %q is no absolute path of a file", where, at)
	for _, own := range instanceFolders {
		c.that(!within(own, at), "%s: target: %s is the instance's own", where, own)
	}
	for _, v := range s.Volumes {
		c.that(!within(v.Path, at), "%s: target: %s lies in volume %s, which outlives the instance: "+
			"read %s/NAME instead", where, at, v.Name, pando.ConfigsFolder)
	}
	for _, f := range s.Folders {
		c.that(!within(cmp.Or(f.At, f.Path), at), "%s: target: %s lies in folder %s of the host: "+
			"read %s/NAME instead", where, at, f.Path, pando.ConfigsFolder)
	}
	for _, t := range s.Tmpfs {
		c.that(!within(t.Path, at), "%s: target: %s lies in tmpfs %s: read %s/NAME instead", where, at,
			t.Path, pando.ConfigsFolder)
	}
}

// configSecrets checks that the templates name secrets that the service has.
func (c *checks) configSecrets(s pando.Spec, one pando.Config, b *config.Budget) {
	if !one.Template {
		return
	}
	if err := checkTemplate(one, b); err != nil {
		c.also(fmt.Errorf("configs.%s: %w", one.Name, err))
		return
	}
	t, _ := config.Parse(one.Name, one.Text)
	for _, name := range t.Secrets() {
		c.that(s.HasSecret(name), "configs.%s: the template has the secret %s: add it to `secrets`",
			one.Name, name)
	}
}

// configList prints configs in the form of a file.
type configList []pando.Config

// lines returns the YAML lines of the configs below their key.
func (all configList) lines() (out []string) {
	add := func(depth int, format string, args ...any) {
		out = append(out, strings.Repeat("  ", depth)+fmt.Sprintf(format, args...))
	}
	for _, c := range all {
		add(0, "%s:", scalar(c.Name))
		if c.Template {
			add(1, "template: true")
		}
		if c.Target != "" {
			add(1, "target: %s", scalar(c.Target))
		}
		if c.Mode != 0 {
			add(1, "mode: %q", fmt.Sprintf("%04o", c.Mode))
		}
		if len(c.Check) > 0 {
			words := make([]string, len(c.Check))
			for n, w := range c.Check {
				words[n] = scalar(w)
			}
			add(1, "check: [%s]", strings.Join(words, ", "))
		}
		if c.OnChange != "" {
			add(1, "on_change: %s", c.OnChange)
		}
		if !blocky(c.Text) {
			add(1, "content: %s", scalar(c.Text))
			continue
		}
		add(1, "content: |")
		for line := range strings.SplitSeq(strings.TrimSuffix(c.Text, "\n"), "\n") {
			add(2, "%s", line)
		}
	}
	return out
}

// blocky reports whether YAML reads a text in a block as it is.
func blocky(s string) bool {
	inner, ends := strings.CutSuffix(s, "\n")
	if !ends || inner == "" || strings.HasSuffix(inner, "\n") || unicode.IsSpace(rune(inner[0])) {
		return false
	}
	for line := range strings.SplitSeq(inner, "\n") {
		if strings.TrimRightFunc(line, unicode.IsSpace) != line {
			return false
		}
	}
	return !strings.ContainsFunc(inner, func(r rune) bool {
		return r != '\n' && !unicode.IsPrint(r) || r == unicode.ReplacementChar
	})
}
