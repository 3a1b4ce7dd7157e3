package compose

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// parts converts the words of a service that are about its files, its place and its rights.
type parts struct {
	*converter
	out *pando.Spec
	at  func(words ...string) []string
}

func (c parts) convert(s types.ServiceConfig) {
	c.placement(s)
	c.configs(s)
	c.capabilities(s)
	c.devices(s)
	c.hosts(s)
	if !c.out.IsJob() && c.awaited(s) {
		makeJob(c.out)
	}
}

// configs converts the configs of a service. Their content becomes a part of the spec.
func (c parts) configs(s types.ServiceConfig) {
	out, at := c.out, c.at
	for _, ref := range s.Configs {
		from, place := c.project.Configs[ref.Source], []string{"configs", ref.Source}
		text, err := c.configText(from)
		if err != nil {
			c.deny(place, "%v", err)
			continue
		}
		one := pando.Config{Name: ref.Source, Text: text, Target: cmp.Or(ref.Target, "/"+ref.Source)}
		if !path.IsAbs(one.Target) {
			one.Target = "/" + one.Target
		}
		for n := 2; hasConfig(out.Configs, one.Name); n++ {
			one.Name = ref.Source + "-" + strconv.Itoa(n)
		}
		if ref.Mode != nil {
			one.Mode = uint32(*ref.Mode) & 0o777
		}
		if ref.UID != "" || ref.GID != "" {
			c.warn(at("configs"), "%s: uid and gid are left out: the program's user has the file",
				ref.Source)
		}
		out.Configs = append(out.Configs, one)
	}
	slices.SortFunc(out.Configs, func(a, b pando.Config) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func hasConfig(all []pando.Config, name string) bool {
	return slices.ContainsFunc(all, func(c pando.Config) bool { return c.Name == name })
}

// configText returns the content of a config of the project.
func (c parts) configText(from types.ConfigObjConfig) (string, error) {
	switch {
	case bool(from.External):
		return "", fmt.Errorf("is external, and the store has no configs: name a file by `file`")
	case from.TemplateDriver != "":
		return "", fmt.Errorf("template_driver: a template of Pando has other words: write the spec's " +
			"`configs: {NAME: {file: FILE, template: true}}` into the output of `pando convert`")
	case from.Content != "":
		return from.Content, spec.CheckConfigText(from.Content)
	case from.Environment != "":
		text, ok := c.environment[from.Environment]
		if !ok || text == "" {
			return "", fmt.Errorf("variable %s is not set: set it, or write it into .env",
				from.Environment)
		}
		return text, spec.CheckConfigText(text)
	case from.File == "":
		return "", fmt.Errorf("has no content: name a file by `file`")
	}
	text, err := c.inside(from.File)
	if os.IsNotExist(err) {
		err = fmt.Errorf("%s does not exist: make it", from.File)
	}
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty", from.File)
	}
	if err == nil {
		err = spec.CheckConfigText(string(text))
	}
	return string(text), err
}
