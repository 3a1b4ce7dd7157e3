package api

import (
	"context"
	"net/http"
	"strings"

	"pando.run/pando"
)

func (h self) merge(
	do func(pando.Self, context.Context, pando.InstanceID) (pando.MergeResult, error),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := do(h.Self, r.Context(), h.id)
		if err != nil {
			fail(w, err, nil)
			return
		}
		answer(w, http.StatusOK, v)
	}
}

// get answers with the bytes of a value. For a path that ends in "/", or an empty path, it lists
// the paths below.
func (h self) get(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("path")
	if path == "" || strings.HasSuffix(path, "/") {
		list, err := h.StateList(r.Context(), h.id, path)
		if err != nil {
			fail(w, err, nil)
			return
		}
		answer(w, http.StatusOK, list)
		return
	}
	v, err := h.StateGet(r.Context(), h.id, path)
	if err != nil {
		fail(w, err, nil)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Pando-State-Type", string(v.Type))
	_, _ = w.Write(v.Bytes) // the caller is gone
}

func (h self) write(
	do func(pando.Self, context.Context, pando.InstanceID, string, []byte) error,
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := readBytes(r, stateBytesMax)
		if err == nil {
			err = do(h.Self, r.Context(), h.id, r.PathValue("path"), b)
		}
		if err != nil {
			fail(w, err, nil)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (h self) delete(w http.ResponseWriter, r *http.Request) {
	if err := h.StateDelete(r.Context(), h.id, r.PathValue("path")); err != nil {
		fail(w, err, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
