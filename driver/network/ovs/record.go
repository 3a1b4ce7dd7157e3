package ovs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pando.run/pando"
)

// A new agent takes over the rules of the former one by a file per service and per link. The folder
// goes with a reboot, as the flows of the switch do.

// service is one steered service.
type service struct {
	Table  pando.SteeringTable
	Number uint32
	Ports  map[pando.InstanceID]uint16
	Scores map[pando.InstanceID]pando.Score `json:",omitempty"`
	Rules  rules
	Group  string `json:",omitempty"` // the command that made its group
}

// connected is one instance at the switch.
type connected struct {
	plug
	Rules rules
}

func (d *Driver) serviceFile(s pando.ServiceKey) string {
	return filepath.Join(d.StateDir, "services", strings.ReplaceAll(s.String(), "/", "@"))
}

func (d *Driver) linkFile(host string) string { return filepath.Join(d.StateDir, "links", host) }

// store writes one record. Its file is whole or the former one.
func store(path string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write a record of the switch: %w", err)
	}
	return nil
}

// recall reads the records of a former agent. It skips a damaged one: the agent publishes it again.
func (d *Driver) recall() error {
	for _, folder := range []string{"services", "links"} {
		dir := filepath.Join(d.StateDir, folder)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make a folder for the records of the switch: %w", err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil || strings.HasSuffix(f.Name(), ".new") {
				continue
			}
			if folder == "links" {
				var c connected
				if json.Unmarshal(text, &c) == nil && c.Port != 0 {
					d.links[c.Link.Host] = &c
				}
				continue
			}
			var s service
			if json.Unmarshal(text, &s) == nil && s.Number != 0 {
				d.services[s.Table.Service], d.numbers[s.Number] = &s, s.Table.Service
			}
		}
	}
	return nil
}

func forgetFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
