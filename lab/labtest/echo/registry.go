package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// registry serves the images of a folder on port 5000, as a registry does. The folder holds manifests
// and blobs under the paths of their requests.
func registry(folder string) error {
	l, err := net.Listen("tcp", ":5000")
	if err != nil {
		return err
	}
	fmt.Println("serving")
	return http.Serve(l, images(folder))
}

// images answers requests for manifests and blobs. A manifest names its own type.
func images(folder string) http.Handler {
	files := http.FileServer(http.Dir(folder))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			var m struct{ MediaType string }
			text, err := os.ReadFile(filepath.Join(folder, filepath.Clean(r.URL.Path)))
			if err != nil || json.Unmarshal(text, &m) != nil {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", m.MediaType)
		}
		files.ServeHTTP(w, r)
	})
}
