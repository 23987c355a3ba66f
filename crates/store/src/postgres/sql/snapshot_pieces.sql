-- name: snapshot_piece_get
SELECT bytes FROM snapshot_pieces WHERE snapshot_id = $1 AND piece = $2

-- name: snapshot_piece_put
INSERT INTO snapshot_pieces (snapshot_id, piece, bytes, created_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (snapshot_id, piece) DO UPDATE SET bytes = excluded.bytes, created_at = excluded.created_at

-- name: snapshot_pieces_abandoned
SELECT p.snapshot_id FROM snapshot_pieces p
WHERE p.piece = 0 AND p.created_at < $1
  AND NOT EXISTS (SELECT 1 FROM sandbox_snapshots s WHERE s.id = p.snapshot_id)
ORDER BY p.created_at LIMIT $2

-- name: snapshot_pieces_delete
DELETE FROM snapshot_pieces WHERE snapshot_id = $1 RETURNING 1

-- name: snapshot_pieces_size
SELECT count(*), coalesce(sum(length(bytes)), 0)::bigint, coalesce(max(piece), -1)
FROM snapshot_pieces WHERE snapshot_id = $1
