package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"pando.run/pando"
)

// flagsFile is the file with the flags that an operator gave to a start. A later start of the same
// data folder without them gives the same host. store.json has those of --store.
func (f folders) flagsFile() string { return filepath.Join(f.Data, "flags.json") }

// keptFlags are the values of flags by name.
type keptFlags map[string][]string

// readFlags returns the flags of the starts before, or none.
func (f folders) readFlags() (keptFlags, error) {
	text, err := os.ReadFile(f.flagsFile())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil // a new host, or a user who may not know them
	}
	kept := keptFlags{}
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read the flags of this host in %s: %w; remove it, and give the flags "+
			"again", f.flagsFile(), err)
	}
	return kept, nil
}

// writeFlags stores the flags for later starts. nil changes nothing.
func (f folders) writeFlags(kept keptFlags) error {
	if kept == nil {
		return nil
	}
	text, err := json.Marshal(kept)
	if err == nil {
		err = os.MkdirAll(f.Data, 0o750)
	}
	if err == nil {
		err = writeDurably(f.flagsFile(), strings.NewReader(string(text)))
	}
	if err != nil {
		return fmt.Errorf("keep the flags of this host: %w", err)
	}
	return nil
}

// recallFlags sets the flags that an earlier start of this data folder had and this command line
// lacks. It returns the names on the command line. The caller has located the folders.
func (p *place) recallFlags(flags *pflag.FlagSet) (asked map[string]bool, err error) {
	asked = map[string]bool{}
	for name := range p.settings() {
		asked[name] = flags.Changed(name)
	}
	kept, err := p.readFlags()
	if err != nil {
		return nil, err
	}
	for name := range p.lasting() {
		values, had := kept[name]
		f := flags.Lookup(name)
		if !had || f == nil || f.Changed {
			continue
		}
		if list, is := f.Value.(pflag.SliceValue); is {
			err = list.Replace(values)
		} else {
			err = f.Value.Set(strings.Join(values, ""))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s has --%s %s: %w; give the flag again", pando.ErrInvalid,
				p.flagsFile(), name, strings.Join(values, ","), err)
		}
		f.Changed = true
	}
	return asked, nil
}

// lasting returns the flags that a host keeps, by name.
func (p place) lasting() map[string]string {
	is := p.settings()
	for name := range p.Store.settings() {
		delete(is, name)
	}
	return is
}

// lastingFlags returns what a later start of this data folder needs: the host's name, and the flags
// that were given now or before. A flag given again with its usual value stays so.
func (p place) lastingFlags(flags *pflag.FlagSet) keptFlags {
	keep := keptFlags{"host": {p.Host}}
	for name, is := range p.lasting() {
		f := flags.Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		keep[name] = []string{f.Value.String()}
		if list, many := f.Value.(pflag.SliceValue); many {
			keep[name] = list.GetSlice()
		}
		if name == "bgp-password-file" {
			keep[name] = []string{is} // absolute: the next start may be in another folder
		}
	}
	return keep
}
